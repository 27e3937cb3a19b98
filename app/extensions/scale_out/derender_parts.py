"""Parts of derendered answers that whole answers and events of streams share."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from msgspec.structs import fields

from app.core.api.chat.thinking import thinking
from app.core.api.logprobs import token_bytes
from app.core.api.pipeline import RequestPipeline
from app.core.engine.request import ToolFunction
from app.core.protocol import common
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import Tool
from app.core.server.http.errors import bad_request
from app.extensions.scale_out import derender_protocol as derender
from app.extensions.scale_out.rules import rules_of
from app.extensions.tool_calls.parsing import CallRead, Read, plain, thoughts
from vllm_facts.reasoning_marks import marks_of, reasoning_has_ended

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Text of bytes that are no whole character."""
METRICS = tuple(field.name for field in fields(common.PerRequestMetrics))
SPECULATIVE_METRICS = (
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "num_spec_steps",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_tokens",
    "per_step_accepted",
    "per_step_drafted",
)
"""Fields of `speculative_decoding`, in vLLM's order."""


def head_of(pipeline: RequestPipeline, request_id: str, model: str) -> dict[str, Any]:
    """Returns the first fields of a whole answer, or of an event."""
    return {
        "id": request_id or pipeline.identity.fresh_id(),
        "created": pipeline.identity.now_s(),
        "model": model,
    }


def complete_metrics(metrics: JsonObject | None) -> JsonObject | None:
    """Returns the metrics of an answer with all of vLLM's fields; missing fields are null."""
    if metrics is None:
        return None
    complete: JsonObject = {**dict.fromkeys(METRICS), **metrics}
    speculative = complete["speculative_decoding"]
    if isinstance(speculative, dict):
        complete["speculative_decoding"] = {**dict.fromkeys(SPECULATIVE_METRICS), **speculative}
    return complete


def check_chat(pipeline: RequestPipeline, chat: ChatCompletionRequest | None) -> None:
    """Raises ApiError 400 if a parser needs the chat that was answered."""
    if chat is None and pipeline.limits.parses and rules_of(pipeline).requires_chat:
        raise bad_request(
            "chat_request is required if a parser is set, because the reply would contain markup."
        )


def check_length(pipeline: RequestPipeline, tokens: int) -> None:
    """Raises ApiError 400 for more tokens than the context has."""
    max_model_len = pipeline.limits.max_model_len
    if tokens > max_model_len:
        raise bad_request(f"the number of tokens exceeds max_model_len ({max_model_len})")


def reader_of(
    pipeline: RequestPipeline,
    chat: ChatCompletionRequest | None,
    prompt_ids: Sequence[int] | None,
    streams: bool,
) -> Read:
    """Returns the parser of a reply to `chat`. A prompt may have ended the thoughts already."""
    if chat is None or not pipeline.limits.parses:
        return plain
    read: Read = plain
    if chat.tools and chat.tool_choice != "none" and pipeline.tool_replies is not None:
        reader = pipeline.tool_replies.reader(pipeline.live.current.tools.tool_call_parser)
        read = CallRead(reader, functions_of(chat.tools), streams)
    rules = pipeline.chat_rules
    parser = pipeline.live.current.reply.reasoning_parser
    if thinking(chat, parser, rules.template_kwargs, rules.efforts) == "no":
        return read
    prompt = pipeline.tokenizer.decode(prompt_ids or (), False)
    marks = marks_of(parser, pipeline.tokenizer.encode)
    if reasoning_has_ended(prompt, marks):
        return read
    return partial(thoughts, read_text=read, marks=marks)


def functions_of(tools: Sequence[Tool]) -> tuple[ToolFunction, ...]:
    """Returns the functions of a chat's tools, whose schemas have the types of arguments."""
    functions: list[ToolFunction] = []
    for tool in tools:
        function = tool.function
        schema = function.parameters or {}
        functions.append(ToolFunction(name=function.name, schema=schema))
    return tuple(functions)


def shown_ids(
    pipeline: RequestPipeline, token_ids: Sequence[int], finish_reason: str | None
) -> Sequence[int]:
    """Returns the tokens whose text a parser reads.

    Leaves out the end-of-text token of a reply that stopped.
    """
    if finish_reason == "stop" and token_ids and token_ids[-1] in pipeline.tokenizer.eos_token_ids:
        return token_ids[:-1]
    return token_ids


def chat_logprobs(
    pipeline: RequestPipeline,
    logprobs: derender.Logprobs | None,
    context_ids: Sequence[int] = (),
) -> common.LogprobContent | None:
    """Returns the log probabilities of a chat; None without any."""
    entries = named_logprobs(pipeline, logprobs, context_ids)
    if entries is None:
        return None
    return common.LogprobContent(entries)


def named_logprobs(
    pipeline: RequestPipeline,
    logprobs: derender.Logprobs | None,
    context_ids: Sequence[int] = (),
) -> list[common.ChatLogprob] | None:
    """Returns log probabilities with the texts of their tokens; None without any.

    As in a generated answer, the last token of a character has its text, and an alternative that
    is a part of a character has none. `context_ids` are tokens before the first one.
    """
    if logprobs is None or logprobs.content is None:
        return None
    tokenizer = pipeline.tokenizer
    token_ids = [entry.token_id for entry in logprobs.content]
    texts = tokenizer.pieces([*context_ids, *token_ids], False)[len(context_ids) :]
    entries = []
    for text, entry in zip(texts, logprobs.content, strict=True):
        alternatives = []
        for candidate in entry.top_logprobs:
            name = text
            if candidate.token_id != entry.token_id:
                [name] = tokenizer.token_texts([candidate.token_id])
                if REPLACEMENT in name:
                    name = ""
            alternatives.append(common.ChatAlternative(name, candidate.logprob, token_bytes(name)))
        entries.append(common.ChatLogprob(text, entry.logprob, token_bytes(text), alternatives))
    return entries


def completion_logprobs(
    pipeline: RequestPipeline,
    logprobs: derender.Logprobs | None,
    text_offset: int = 0,
    context_ids: Sequence[int] = (),
) -> common.CompletionLogprobs | None:
    """Returns the lists of a text completion; the first token starts at `text_offset`."""
    entries = named_logprobs(pipeline, logprobs, context_ids)
    if entries is None:
        return None
    tokens = [entry.token for entry in entries]
    offsets = list(accumulate(map(len, tokens), initial=text_offset))[: len(tokens)]
    return common.CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[entry.logprob for entry in entries],
        tokens=tokens,
        top_logprobs=[
            {alternative.token: alternative.logprob for alternative in entry.top_logprobs} or None
            for entry in entries
        ],
    )
