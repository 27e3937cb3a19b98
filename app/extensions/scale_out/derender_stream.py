"""Events of a stream of token ids as events of a chat or a text completion.

The server stores nothing between two events: the client sends the state that the previous answer
returned, as with vLLM. Without a parser the state has the last few tokens; with a parser it has all
tokens of the choice, which are parsed again with each event.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from app.core.api.identity import Identity
from app.core.api.pipeline import RequestPipeline
from app.core.engine.outputs import Piece
from app.core.protocol import chat as wire
from app.core.protocol import common
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.completions import CompletionChunkChoice
from app.core.protocol.features import Feature
from app.core.protocol.options import NamedToolChoice
from app.core.server.http.errors import bad_request
from app.core.text.base import Tokenizer
from app.extensions.scale_out import derender_protocol as derender
from app.extensions.scale_out.derender_parts import (
    REPLACEMENT,
    chat_logprobs,
    check_chat,
    check_length,
    complete_metrics,
    completion_logprobs,
    head_of,
    reader_of,
    shown_ids,
)
from app.extensions.scale_out.derender_rules import (
    check_streamed_stops,
    ending_of,
    shown_logprobs,
    shows_token_ids,
)
from app.extensions.tool_calls.parsing import TextReader

CONTEXT_TOKENS = 5
"""Tokens before the new ones that are decoded with them: some decoders change a text's start."""
LOGPROB_CONTEXT_TOKENS = 4


def chat_event(
    pipeline: RequestPipeline, request: derender.DerenderChatStreamRequest
) -> derender.DerenderedEvent:
    """Returns an event of a chat, and the state for the next one.

    Raises:
        ApiError: 400, or 404 for an unknown model.
    """
    model = pipeline.models.resolve(request.model)
    check_streamed_stops(pipeline, request.chat_request)
    check_chat(pipeline, request.chat_request)
    if pipeline.limits.parses and request.prompt_token_ids is None:
        raise bad_request(
            "prompt_token_ids is required with a parser, because reasoning can begin in the prompt."
        )
    state = checked_state(pipeline, request)
    choices: list[derender.ChatEventChoice] = []
    for choice in request.generate_chunk.choices:
        shown, state = _chat_choice(pipeline, request, choice, state)
        choices.append(shown)
    chunk = derender.ChatEvent(choices=choices, **_event_head(pipeline, request, model))
    if shows_token_ids(pipeline, request.chat_request):
        chunk.prompt_token_ids = request.generate_chunk.prompt_token_ids
    return derender.DerenderedEvent(chunk, state)


def completion_event(
    pipeline: RequestPipeline, request: derender.DerenderCompletionStreamRequest
) -> derender.DerenderedEvent:
    """Returns an event of a text completion, and the state for the next one.

    Raises:
        ApiError: 400, or 404 for an unknown model.
    """
    model = pipeline.models.resolve(request.model)
    check_streamed_stops(pipeline, request.completion_request)
    state = checked_state(pipeline, request)
    choices: list[CompletionChunkChoice] = []
    for choice in request.generate_chunk.choices:
        shown, state = _completion_choice(pipeline, request, choice, state)
        choices.append(shown)
    chunk = derender.CompletionEvent(choices=choices, **_event_head(pipeline, request, model))
    return derender.DerenderedEvent(chunk, state)


def _completion_choice(
    pipeline: RequestPipeline,
    request: derender.DerenderCompletionStreamRequest,
    choice: derender.RenderedChoice,
    state: derender.StreamState,
) -> tuple[CompletionChunkChoice, derender.StreamState]:
    completion = request.completion_request
    ending = ending_of(pipeline, choice, completion)
    logprobs = completion_logprobs(
        pipeline,
        shown_logprobs(pipeline, choice.logprobs, completion),
        state.logprob_text_offset,
        state.logprob_context_token_ids,
    )
    text, state = added_text(
        pipeline.tokenizer,
        choice,
        ending.token_ids,
        state=state,
        skips_special=request.skips_special,
    )
    if (
        logprobs is not None
        and logprobs.tokens
        and pipeline.version.has(Feature.DERENDER_AS_GENERATED)
    ):
        # Special tokens have an entry even where they have no text.
        offset = state.logprob_text_offset - len(text) + sum(map(len, map(str, logprobs.tokens)))
        state = replace(state, logprob_text_offset=offset)
    shown = CompletionChunkChoice(
        index=choice.index,
        text=text,
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        stop_reason=ending.stop_reason,
    )
    if pipeline.version.has(Feature.WEIGHT_VERSIONS):
        shown.weight_versions = None
    if shows_token_ids(pipeline, completion):
        shown.prompt_token_ids = request.generate_chunk.prompt_token_ids
        shown.token_ids = choice.token_ids
    return shown, state


def _event_head(
    pipeline: RequestPipeline, request: derender.DerenderStreamRequest, model: str
) -> dict[str, Any]:
    """Returns the fields that chats and completions share; `model` is the served one."""
    event = request.generate_chunk
    transfer: None | UnsetType = UNSET
    if pipeline.version.has(Feature.CHUNK_TRANSFER_PARAMS):
        transfer = None
    return {
        **head_of(pipeline, event.request_id, request.model or model),
        "usage": event_usage(request),
        "metrics": complete_metrics(event.metrics),
        "kv_transfer_params": transfer,
    }


def checked_state(
    pipeline: RequestPipeline, request: derender.DerenderStreamRequest
) -> derender.StreamState:
    """Returns the state before the event.

    Raises:
        ApiError: 400 for several choices, and for more tokens than the context has.
    """
    choices = request.generate_chunk.choices
    if len(choices) > 1:
        raise bad_request(f"An event must have at most one choice, got {len(choices)}.")
    state = request.stream_state or derender.StreamState()
    tokens = len(request.prompt_token_ids or ()) + len(state.output_token_ids)
    tokens += sum(len(choice.token_ids or ()) for choice in choices)
    check_length(pipeline, tokens)
    return state


def _chat_choice(
    pipeline: RequestPipeline,
    request: derender.DerenderChatStreamRequest,
    choice: derender.RenderedChoice,
    state: derender.StreamState,
) -> tuple[derender.ChatEventChoice, derender.StreamState]:
    chat = request.chat_request
    ending = ending_of(pipeline, choice, chat)
    shown = derender.ChatEventChoice(
        index=choice.index,
        delta=derender.ChatDelta(),
        logprobs=chat_logprobs(
            pipeline,
            shown_logprobs(pipeline, choice.logprobs, chat),
            state.logprob_context_token_ids,
        ),
        finish_reason=choice.finish_reason,
        stop_reason=ending.stop_reason,
    )
    if pipeline.version.has(Feature.WEIGHT_VERSIONS):
        shown.weight_versions = None
    if chat is not None and chat.return_token_ids:
        shown.token_ids = choice.token_ids
    if pipeline.limits.parses and chat is not None:
        shown.delta, state = _parsed(pipeline, request, chat, choice=choice, state=state)
        shown.finish_reason = _finish_reason(pipeline, chat, choice, state)
        if not chat.include_reasoning:
            shown.token_ids = None
        if not chat.include_reasoning or not pipeline.version.has(Feature.DERENDER_AS_GENERATED):
            shown.logprobs = None
    else:
        text, state = added_text(
            pipeline.tokenizer,
            choice,
            ending.token_ids,
            state=state,
            skips_special=request.skips_special,
        )
        shown.delta.content = text or None
    if not state.role_sent:
        shown.delta.role = "assistant"
        state = replace(state, role_sent=True)
    return shown, state


def _finish_reason(
    pipeline: RequestPipeline,
    chat: ChatCompletionRequest,
    choice: derender.RenderedChoice,
    state: derender.StreamState,
) -> str | None:
    """Returns `tool_calls` at the end of a reply that called tools by choice."""
    reason = choice.finish_reason
    is_cut_off = reason != "stop" and pipeline.version.has(Feature.DERENDER_AS_GENERATED)
    if reason is None or is_cut_off or not state.tools_streamed:
        return reason
    if isinstance(chat.tool_choice, NamedToolChoice):
        return reason
    return "tool_calls"


def _parsed(
    pipeline: RequestPipeline,
    request: derender.DerenderChatStreamRequest,
    chat: ChatCompletionRequest,
    *,
    choice: derender.RenderedChoice,
    state: derender.StreamState,
) -> tuple[derender.ChatDelta, derender.StreamState]:
    """Parses all tokens so far, and returns what this event has added."""
    reader = TextReader(reader_of(pipeline, chat, request.prompt_token_ids, streams=True))
    old_ids = state.output_token_ids
    token_ids = choice.token_ids or []
    if pipeline.version.has(Feature.DERENDER_AS_GENERATED):
        reply: Sequence[int] = [*old_ids, *ending_of(pipeline, choice, chat).token_ids]
    else:
        reply = shown_ids(pipeline, [*old_ids, *token_ids], choice.finish_reason)
    tokenizer = pipeline.tokenizer
    has_ended = choice.finish_reason is not None
    sent = complete_text(tokenizer, old_ids, has_ended=False)
    text = complete_text(tokenizer, reply, has_ended)
    for addition in earlier_additions(tokenizer, state):
        reader.feed(addition)
    pieces = reader.feed(text[len(sent) :])
    if has_ended:
        pieces += reader.finish()
    call_ids = list(state.last_tool_call_ids)
    delta = delta_of(pieces, chat, call_ids, pipeline.identity)
    logprob_context = state.logprob_context_token_ids
    if pipeline.version.has(Feature.DERENDER_AS_GENERATED):
        logprob_context = [*logprob_context, *token_ids][-LOGPROB_CONTEXT_TOKENS:]
    lengths = state.output_chunk_lens
    if token_ids:
        lengths = [*lengths, len(token_ids)]
    return delta, replace(
        state,
        output_token_ids=[*old_ids, *token_ids],
        output_chunk_lens=lengths,
        logprob_context_token_ids=logprob_context,
        tools_streamed=state.tools_streamed or delta.tool_calls is not UNSET,
        last_tool_call_ids=call_ids,
    )


def event_usage(request: derender.DerenderStreamRequest) -> common.Usage | None:
    """Returns the usage of an event; `prompt_tokens` of the request take precedence."""
    usage = request.generate_chunk.usage
    if usage is None:
        return None
    prompt_tokens = request.prompt_tokens
    if prompt_tokens is None:
        prompt_tokens = usage.prompt_tokens
    return common.usage_of(prompt_tokens, usage.completion_tokens or 0)


def delta_of(
    pieces: Sequence[Piece],
    chat: ChatCompletionRequest,
    call_ids: list[str],
    identity: Identity,
) -> derender.ChatDelta:
    """Returns what `pieces` add to a message; appends the ids of new calls to `call_ids`."""
    delta = derender.ChatDelta()
    calls: dict[int, wire.ToolCall] = {}
    for part, text in pieces:
        if part is None:
            delta.content = (delta.content or "") + text
        elif part.kind == "reasoning":
            if chat.include_reasoning:
                delta.reasoning = (delta.reasoning or "") + text
        elif part.raw or (part.number and chat.parallel_tool_calls is False):
            continue
        elif part.number >= len(call_ids):
            call_ids.append(f"chatcmpl-tool-{identity.fresh_id()}")
            calls[part.number] = wire.ToolCall(
                id=call_ids[-1],
                type="function",
                index=part.number,
                function=wire.FunctionCall(part.name, text),
            )
        elif part.number in calls:
            function = calls[part.number].function
            assert isinstance(function, wire.FunctionCall) and isinstance(function.arguments, str)
            function.arguments += text
        else:
            calls[part.number] = wire.ToolCall(
                index=part.number, function=wire.FunctionCall(arguments=text)
            )
    if calls:
        delta.tool_calls = list(calls.values())
    return delta


def added_text(
    tokenizer: Tokenizer,
    choice: derender.RenderedChoice,
    text_ids: Sequence[int],
    *,
    state: derender.StreamState,
    skips_special: bool,
) -> tuple[str, derender.StreamState]:
    """Returns the text that the tokens `text_ids` of `choice` add, and the state after them."""
    token_ids = choice.token_ids or []
    window = [*state.output_token_ids, *text_ids]
    pieces = tokenizer.pieces(window, skips_special)
    complete_count = count_complete_pieces(pieces, choice.finish_reason is not None)
    text = "".join(pieces[state.read_offset : complete_count])
    start = window_start(pieces, complete_count)
    context_ids = window[start:]
    logprob_context = [*state.logprob_context_token_ids, *token_ids][-LOGPROB_CONTEXT_TOKENS:]
    return text, replace(
        state,
        output_token_ids=context_ids,
        output_chunk_lens=[len(context_ids)] if context_ids else [],
        read_offset=max(state.read_offset, complete_count) - start,
        logprob_context_token_ids=logprob_context,
        logprob_text_offset=state.logprob_text_offset + len(text),
    )


def earlier_additions(tokenizer: Tokenizer, state: derender.StreamState) -> Iterator[str]:
    """Yields the text that each earlier event added: some parsers depend on how a text was cut."""
    pieces = tokenizer.pieces(state.output_token_ids, False)
    tokens = 0
    shown = 0
    for length in (*state.output_chunk_lens, len(pieces)):
        tokens = min(tokens + length, len(pieces))
        end = tokens
        if pieces[tokens - 1 : tokens] and pieces[tokens - 1].endswith(REPLACEMENT):
            end = count_complete_pieces(pieces[:tokens], has_ended=False)
        if end > shown:
            yield "".join(pieces[shown:end])
            shown = end


def complete_text(tokenizer: Tokenizer, token_ids: Sequence[int], has_ended: bool) -> str:
    """Returns the text of `token_ids` with special tokens, without an incomplete character."""
    pieces = tokenizer.pieces(token_ids, False)
    return "".join(pieces[: count_complete_pieces(pieces, has_ended)])


def count_complete_pieces(pieces: Sequence[str], has_ended: bool) -> int:
    """Returns the number of pieces that further tokens cannot change.

    The last tokens may be the beginning of a character, which is held back until its last token.
    """
    if has_ended or not pieces or not pieces[-1].endswith(REPLACEMENT):
        return len(pieces)
    count = len(pieces) - 1
    while count and not pieces[count - 1]:
        count -= 1
    return count


def window_start(pieces: Sequence[str], end: int) -> int:
    """Returns the first token of the context before token `end`; a character starts there."""
    start = max(0, end - CONTEXT_TOKENS)
    while start and not pieces[start - 1]:
        start -= 1
    return start
