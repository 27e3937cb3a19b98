"""From a pooling request to the token ids of its texts, with the checks in vLLM's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.api.door import Door
from app.http.errors import bad_request
from app.pooling.turns import Turns
from app.protocol.pooling import MAX_INPUTS, ClassificationRequest, PoolingFields, TokenIds
from app.protocol.validation import limits as rules
from app.tokenization import ChatOptions

BATCH = 256
"""Texts that are tokenized in one call."""


def enter(door: Door, asked: PoolingFields) -> str:
    """The model's name for the answer; ApiError when model, server or fields do not allow the request."""
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(asked, name, None):
            raise bad_request(f"{name} is for models that take more than text.", name)
    model = door.models.resolve(asked.model)
    door.delivery.service.check_accepting(0)
    keep, most = asked.truncate_prompt_tokens, door.limits.max_model_len
    if keep is not None and keep > most:
        raise bad_request(f"truncate_prompt_tokens={keep} is more than the context of {most} tokens")
    return model


def prompt_ids(door: Door, asked: ClassificationRequest) -> list[TokenIds]:
    """The token ids of each input, truncated as asked. ApiError 400 for one that is empty or too long."""
    count = len(asked.conversations or asked.texts or asked.id_lists)
    if not count:
        raise bad_request("at least one input is needed")
    check_count(count, "input")
    return [_not_empty(fitted(door, asked, ids)) for ids in Turns().each(_encoded(door, asked), len)]


def _encoded(door: Door, asked: ClassificationRequest) -> Iterator[TokenIds]:
    if asked.conversations:
        return _conversation_ids(door, asked)
    if asked.texts:
        bounded = asked.truncate_prompt_tokens is None
        return text_ids(door, asked.texts, bool(asked.add_special_tokens), bounded)
    return _known_ids(door, asked.id_lists)


def text_ids(door: Door, texts: Sequence[str], add_special_tokens: bool, bounded: bool) -> Iterator[TokenIds]:
    """The token ids of each text; with `bounded`, ApiError 400 for one too long before any work on it."""
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        for text in batch if bounded else ():
            door.check_text(text)
        yield from door.tokenizer.encode_many(batch, add_special_tokens)


def fitted(door: Door, asked: PoolingFields, ids: TokenIds) -> TokenIds:
    """The part of `ids` that the request wants to keep. ApiError 400 when it exceeds the context."""
    kept = asked.kept(ids, door.limits.max_model_len)
    rules.check_prompt_length(len(kept), door.limits.max_model_len)
    return kept


def check_count(count: int, param: str) -> None:
    """ApiError 400 for more inputs than one request may have."""
    if count > MAX_INPUTS:
        raise bad_request(f"at most {MAX_INPUTS} inputs fit into one request, got {count}", param)


def _not_empty(ids: TokenIds) -> TokenIds:
    if not ids:
        raise bad_request("an input has no tokens")
    return ids


def _known_ids(door: Door, prompts: Sequence[TokenIds]) -> Iterator[TokenIds]:
    for ids in prompts:
        door.tokenizer.check_ids(ids)
        yield ids


def _conversation_ids(door: Door, asked: ClassificationRequest) -> Iterator[TokenIds]:
    if asked.chat_template is not None or "chat_template" in (asked.chat_template_kwargs or ()):
        raise bad_request("A chat template in the request is not trusted here.")
    options = ChatOptions(
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        add_special_tokens=bool(asked.add_special_tokens),
        chat_template_kwargs=asked.chat_template_kwargs,
    )
    for conversation in asked.conversations:
        yield door.tokenizer.encode_chat(conversation, options)
