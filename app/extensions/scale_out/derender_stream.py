"""Events of a stream of token ids as events of a chat or a text completion.

The server stores nothing between two events: the client sends the state that the previous answer
returned, as with vLLM. Without a parser the state has the last few tokens; with a parser it has all
tokens of the choice, which are parsed again with each event.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from app.core.api.identity import Identity
from app.core.api.pipeline import RequestPipeline
from app.core.engine.outputs import Piece
from app.core.protocol import chat as wire
from app.core.protocol import common
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.completions import CompletionChunkChoice
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
    AnsweredRequest,
    check_streamed_stops,
    ending_of,
    shown_logprobs,
    shows_token_ids,
)
from app.extensions.scale_out.rules import rules_of
from app.extensions.tool_calls.parsing import TextReader

CONTEXT_TOKENS = 5
"""Tokens before the new ones that are decoded with them: some decoders change a text's start."""
LOGPROB_CONTEXT_TOKENS = 4


class ChoiceEvent:
    """An event's addition to a choice. Showing it moves `state` on: add it once, in one form."""

    def __init__(
        self,
        pipeline: RequestPipeline,
        request: AnsweredRequest,
        choice: derender.RenderedChoice,
        state: derender.StreamState,
    ) -> None:
        """`request` is the one that the choice answers; `state` is from before the event."""
        self.pipeline = pipeline
        self.choice = choice
        self.state = state
        self.shows_generated = rules_of(pipeline).derenders_as_generated
        """True for releases that show tokens and their entries as the engine generated them."""
        self.ending = ending_of(pipeline, choice, request)
        self.logprobs = shown_logprobs(pipeline, choice.logprobs, request)
        self.token_ids = choice.token_ids or []
        self.has_ended = choice.finish_reason is not None

    def add_text(self, *, skips_special: bool) -> str:
        """Returns the text that the tokens add."""
        state = self.state
        window = [*state.output_token_ids, *self.ending.token_ids]
        pieces = self.pipeline.tokenizer.pieces(window, skips_special)
        complete_count = count_complete_pieces(pieces, self.has_ended)
        text = "".join(pieces[state.read_offset : complete_count])
        start = window_start(pieces, complete_count)
        context_ids = window[start:]
        self.state = replace(
            state,
            output_token_ids=context_ids,
            output_chunk_lens=[len(context_ids)] if context_ids else [],
            read_offset=max(state.read_offset, complete_count) - start,
            logprob_context_token_ids=self._logprob_context(),
            logprob_text_offset=state.logprob_text_offset + len(text),
        )
        return text

    def add_parsed(
        self, chat: ChatCompletionRequest, prompt_ids: Sequence[int] | None
    ) -> derender.ChatDelta:
        """Parses all tokens so far, and returns what this event has added."""
        state = self.state
        tokenizer = self.pipeline.tokenizer
        reader = TextReader(reader_of(self.pipeline, chat, prompt_ids, streams=True))
        for addition in earlier_additions(tokenizer, state):
            reader.feed(addition)
        sent = complete_text(tokenizer, state.output_token_ids, has_ended=False)
        text = complete_text(tokenizer, self._reply_ids(), self.has_ended)
        pieces = reader.feed(text[len(sent) :])
        if self.has_ended:
            pieces += reader.finish()
        call_ids = list(state.last_tool_call_ids)
        delta = delta_of(pieces, chat, call_ids, self.pipeline.identity)
        logprob_context = state.logprob_context_token_ids
        if self.shows_generated:
            logprob_context = self._logprob_context()
        lengths = state.output_chunk_lens
        if self.token_ids:
            lengths = [*lengths, len(self.token_ids)]
        self.state = replace(
            state,
            output_token_ids=[*state.output_token_ids, *self.token_ids],
            output_chunk_lens=lengths,
            logprob_context_token_ids=logprob_context,
            tools_streamed=state.tools_streamed or delta.tool_calls is not UNSET,
            last_tool_call_ids=call_ids,
        )
        return delta

    def _reply_ids(self) -> Sequence[int]:
        """Returns the tokens so far whose text a parser reads."""
        earlier_ids = self.state.output_token_ids
        if self.shows_generated:
            return [*earlier_ids, *self.ending.token_ids]
        return shown_ids(self.pipeline, [*earlier_ids, *self.token_ids], self.choice.finish_reason)

    def _logprob_context(self) -> list[int]:
        token_ids = [*self.state.logprob_context_token_ids, *self.token_ids]
        return token_ids[-LOGPROB_CONTEXT_TOKENS:]


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
        event = ChoiceEvent(pipeline, request.chat_request, choice, state)
        choices.append(_chat_choice(event, request))
        state = event.state
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
        event = ChoiceEvent(pipeline, request.completion_request, choice, state)
        choices.append(_completion_choice(event, request))
        state = event.state
    chunk = derender.CompletionEvent(choices=choices, **_event_head(pipeline, request, model))
    return derender.DerenderedEvent(chunk, state)


def _completion_choice(
    event: ChoiceEvent, request: derender.DerenderCompletionStreamRequest
) -> CompletionChunkChoice:
    choice = event.choice
    text_offset = event.state.logprob_text_offset
    logprobs = completion_logprobs(
        event.pipeline, event.logprobs, text_offset, event.state.logprob_context_token_ids
    )
    shown = CompletionChunkChoice(
        index=choice.index,
        text=event.add_text(skips_special=request.skips_special),
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        stop_reason=event.ending.stop_reason,
    )
    if logprobs is not None and logprobs.tokens and event.shows_generated:
        # Special tokens have an entry even where they have no text.
        text_offset += sum(map(len, map(str, logprobs.tokens)))
        event.state = replace(event.state, logprob_text_offset=text_offset)
    if shows_token_ids(event.pipeline, request.completion_request):
        shown.prompt_token_ids = request.generate_chunk.prompt_token_ids
        shown.token_ids = choice.token_ids
    return shown


def _chat_choice(
    event: ChoiceEvent, request: derender.DerenderChatStreamRequest
) -> derender.ChatEventChoice:
    chat = request.chat_request
    choice = event.choice
    shown = derender.ChatEventChoice(
        index=choice.index,
        delta=derender.ChatDelta(),
        logprobs=chat_logprobs(
            event.pipeline, event.logprobs, event.state.logprob_context_token_ids
        ),
        finish_reason=choice.finish_reason,
        stop_reason=event.ending.stop_reason,
    )
    if chat is not None and chat.return_token_ids:
        shown.token_ids = choice.token_ids
    if event.pipeline.limits.parses and chat is not None:
        shown.delta = event.add_parsed(chat, request.prompt_token_ids)
        shown.finish_reason = _finish_reason(event, chat)
        if not chat.include_reasoning:
            shown.token_ids = None
        if not chat.include_reasoning or not event.shows_generated:
            shown.logprobs = None
    else:
        shown.delta.content = event.add_text(skips_special=request.skips_special) or None
    if not event.state.role_sent:
        shown.delta.role = "assistant"
        event.state = replace(event.state, role_sent=True)
    return shown


def _finish_reason(event: ChoiceEvent, chat: ChatCompletionRequest) -> str | None:
    """Returns `tool_calls` at the end of a reply that called tools by choice."""
    reason = event.choice.finish_reason
    is_cut_off = reason != "stop" and event.shows_generated
    if reason is None or is_cut_off or not event.state.tools_streamed:
        return reason
    if isinstance(chat.tool_choice, NamedToolChoice):
        return reason
    return "tool_calls"


def _event_head(
    pipeline: RequestPipeline, request: derender.DerenderStreamRequest, model: str
) -> dict[str, Any]:
    """Returns the fields that chats and completions share; `model` is the served one."""
    event = request.generate_chunk
    return {
        **head_of(pipeline, event.request_id, request.model or model),
        "usage": event_usage(request),
        "metrics": complete_metrics(event.metrics),
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
