"""From a pooling request to the token ids of its texts, with the checks in vLLM's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from app.api.chat.prompt import own_template
from app.api.frontend import Frontend
from app.http.errors import bad_request
from app.pooling.numbers import Turns
from app.protocol.pooling import MAX_INPUTS, ClassificationRequest, PoolingFields, TokenIds
from app.protocol.validation import generation as rules
from app.tokenization import ChatOptions

BATCH = 256
"""Texts that are tokenized in one call."""


def enter(frontend: Frontend, asked: PoolingFields) -> str:
    """The model's name for the answer; ApiError when model, server or fields do not allow the request."""
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(asked, name, None):
            raise bad_request(f"{name} is for models that take more than text.", name)
    model = frontend.models.resolve(asked.model, param=None)
    frontend.responder.engine.check_accepting(1)
    keep, most = asked.truncate_prompt_tokens, frontend.limits.max_model_len
    if keep is not None and keep > most:
        raise bad_request(f"truncate_prompt_tokens={keep} is more than the context of {most} tokens")
    return model


def prompt_ids(frontend: Frontend, asked: ClassificationRequest) -> list[TokenIds]:
    """The token ids of each input, truncated as asked. ApiError 400 for one that is empty or too long."""
    count = len(asked.conversations or asked.texts or asked.id_lists)
    if not count:
        raise bad_request("at least one input is needed")
    check_count(count, "input")
    return [not_empty(fitted(frontend, asked, ids)) for ids in Turns().each(_encoded(frontend, asked), len)]


def texts_of(frontend: Frontend, asked: ClassificationRequest, inputs: Sequence[TokenIds]) -> Iterable[str]:
    """Each input as a text, which is that of its tokens where it came as such, or some were left out."""
    if asked.texts and asked.truncate_prompt_tokens is None:
        return asked.texts
    return map(frontend.tokenizer.decode, inputs)


def _encoded(frontend: Frontend, asked: ClassificationRequest) -> Iterator[TokenIds]:
    if asked.conversations:
        return _conversation_ids(frontend, asked)
    if asked.texts:
        bounded = asked.truncate_prompt_tokens is None
        return text_ids(frontend, asked.texts, bool(asked.add_special_tokens), bounded)
    return _known_ids(frontend, asked.id_lists)


def text_ids(
    frontend: Frontend, texts: Sequence[str], add_special_tokens: bool, bounded: bool
) -> Iterator[TokenIds]:
    """The token ids of each text; with `bounded`, ApiError 400 for one too long before any work on it."""
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        for text in batch if bounded else ():
            frontend.check_text(text)
        yield from frontend.tokenizer.encode_many(batch, add_special_tokens)


def fitted(frontend: Frontend, asked: PoolingFields, ids: TokenIds) -> TokenIds:
    """The part of `ids` that the request wants to keep. ApiError 400 when it exceeds the context."""
    kept = asked.kept(ids, frontend.limits.max_model_len)
    rules.check_prompt_length(len(kept), frontend.limits.max_model_len)
    return kept


def check_count(count: int, param: str) -> None:
    """ApiError 400 for more inputs than one request may have."""
    if count > MAX_INPUTS:
        raise bad_request(f"at most {MAX_INPUTS} inputs fit into one request, got {count}", param)


def not_empty(ids: TokenIds) -> TokenIds:
    """The `ids` of an input. ApiError 400 when there are none."""
    if not ids:
        raise bad_request("an input has no tokens")
    return ids


def _known_ids(frontend: Frontend, prompts: Sequence[TokenIds]) -> Iterator[TokenIds]:
    for ids in prompts:
        frontend.tokenizer.check_ids(ids)
        yield ids


def _conversation_ids(frontend: Frontend, asked: ClassificationRequest) -> Iterator[TokenIds]:
    options = ChatOptions(
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        add_special_tokens=bool(asked.add_special_tokens),
        chat_template=own_template(asked, frontend.chat_rules),
        chat_template_kwargs=asked.chat_template_kwargs,
    )
    for conversation in asked.conversations:
        yield frontend.tokenizer.encode_chat(conversation, options)
