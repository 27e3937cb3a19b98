"""Writes the answers to chats: one JSON body or server-sent events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from app.core.api.chat.call_form import CallForm
from app.core.api.errors import as_stream_error
from app.core.api.identity import ResponseOptions
from app.core.api.logprobs import TokenNames, prompt_entries, rendered
from app.core.api.writer import NOT_STARTED, ChunkWriter, PlainChoice, chunk_end
from app.core.engine.errors import EnginePausedError
from app.core.protocol import chat as wire
from app.core.protocol import common
from app.core.protocol.common import HOLE, encode
from app.core.server.http.errors import ApiError
from app.core.server.http.response import error_event

if TYPE_CHECKING:
    from msgspec import UnsetType

    from app.core.api.choice_state import ChoiceState
    from app.core.api.identity import ResponseMeta
    from app.core.base.metrics.recorder import ParserRuns
    from app.core.engine.outputs import Part, Started, Tokens
    from app.core.versions.shape import Shape

START_TAIL = common.ChunkTail(prompt_token_ids=None, prompt_text=None)
DEFAULT_CALL_FORM = CallForm()


class ChunkTemplates:
    """Parts of chunks that are constant in the shape of a version."""

    def __init__(self, shape: Shape) -> None:
        text = wire.ChunkChoice(HOLE, wire.Delta(content=HOLE), token_ids=None)
        thought = wire.ChunkChoice(HOLE, wire.Delta(reasoning=HOLE), token_ids=None)
        self.text = PlainChoice(text, shape)
        self.thought = PlainChoice(thought, shape)
        self.role = shape.template(wire.ChunkChoice(HOLE, wire.Delta(HOLE, "")))
        """Bytes before the index of the choice, before the role, and after it."""
        self.start_end = chunk_end(START_TAIL, shape)
        """End of the first chunk of most streams."""


chunk_templates = cache(ChunkTemplates)


class ChatResponseOptions(ResponseOptions, frozen=True, kw_only=True):
    """Content of a response, from the request and the settings of the server."""

    prompt_ids: Sequence[int]
    role: str = "assistant"
    echo: str | None = None
    top_logprobs: int | None = None
    """Alternatives shown; None without log probabilities."""
    beams: bool = False
    """The choices are beams.

    Only the ids of their tokens are known: log probabilities have no bytes.
    """
    prompt_text: str | None = None
    named_tool: bool = False
    """A named tool had to be called: the reply then ends with `stop`."""
    forced_tool: bool = False
    """A tool had to be called: beside its calls, the reply's text is empty instead of null."""
    new_call_id: Callable[[], str] = str
    """Draws the id of a tool call; `str` where there are none."""
    parser_runs: ParserRuns | None = None
    """Counts runs of the parser of tool calls; None if none is run."""
    parses: bool = False
    """Thoughts or calls are parsed out of the text: an end that shows nothing has no text."""
    reasons: bool = False
    """The model thinks: usage counts its thoughts, and without a text the content is null."""
    call_form: CallForm = DEFAULT_CALL_FORM
    """Form of the chunks of tool calls."""
    empty_thoughts: bool = False
    """A token of thoughts, or an end, that adds no text has an empty text in its chunk."""
    show_reasoning: bool = True
    """`include_reasoning`; hidden thoughts also hide tokens and log probabilities, and the chunks
    of the reply name them as null."""
    blocks: bool = False
    """The content is a list of blocks that ends with an image."""
    media_tokens: Mapping[str, int] | None = None


class ChatWriter(ChunkWriter[ChatResponseOptions]):
    """Writes the answer to a chat, as a stream or whole."""

    kind = "chat.completion.chunk"
    _logprobs: TokenNames | None = None

    def __init__(self, meta: ResponseMeta, options: ChatResponseOptions) -> None:
        self._hides = options.parses and not options.show_reasoning
        """Tokens and log probabilities are hidden, as they would show hidden thoughts."""
        self._is_bare = (
            options.top_logprobs is None
            and not options.token_ids
            and not options.continuous_usage
            and not self._hides
        )
        """Tokens add nothing but their texts to the chunks."""
        is_plain = self._is_bare and not options.blocks and options.parser_runs is None
        super().__init__(meta, options, options.n, is_plain)
        self._templates = chunk_templates(options.shape)
        self.plain_text = self._templates.text
        self.parser_runs = options.parser_runs
        self.image = options.blocks
        if options.top_logprobs is not None and not self._hides:
            self._logprobs = TokenNames(options.top_logprobs, options.token_id_names, options.beams)

    def _render_failure(self, error: Exception) -> bytes:
        if not isinstance(error, EnginePausedError):
            return super()._render_failure(error)
        # A streamed chat names another type than the other answers do.
        paused = as_stream_error(error)
        return error_event(ApiError(paused.status, "InternalServerError", paused.message))

    def _render_start(self, output: Started) -> bytes:
        """Returns the role chunks of all choices together, when the first choice starts."""
        if self.started is not NOT_STARTED:
            return b""
        self.started = output
        self._write_head()
        options = self._options
        tail = common.ChunkTail(
            prompt_token_ids=options.prompt_ids if options.token_ids else None,
            prompt_text=options.prompt_text,
        )
        if options.continuous_usage:
            tail.usage = self._choice_usage(0)
        end = self._templates.start_end
        if tail != START_TAIL:
            end = chunk_end(tail, options.shape)
        before_index, before_role, role_end = self._templates.role
        role = before_role + encode(options.role) + role_end + end
        chunks: list[bytes] = []
        for index in range(options.n):
            chunks.append(b"%b%b%d%b" % (self._head, before_index, index, role))
        if options.echo:
            delta = wire.Delta(content=options.echo)
            end = chunk_end(common.ChunkTail(tail.usage), options.shape)
            for index in range(options.n):
                chunks += self._head, self.encode(wire.ChunkChoice(index, delta)), end
        return b"".join(chunks)

    def _render_plain_thoughts(self, output: Tokens, count: int) -> bytes:
        choice = self.choices[output.index]
        choice.tokens += count
        choice.reasoning_tokens += count
        if not self._options.show_reasoning:
            return b""
        shown = [text for text in output.texts[:count] if text or self._options.empty_thoughts]
        return self._render_plain(self._templates.thought, output.index, shown)

    def _build_choice(
        self, choice: ChoiceState, output: Tokens, span: slice, is_end: bool
    ) -> wire.ChunkChoice | None:
        """Returns the choice of a chunk with these tokens; None if they show nothing."""
        options = self._options
        part = output.part
        ids = output.ids[span]
        text = "".join(output.texts[span])
        if part is not None and part.kind == "reasoning":
            choice.reasoning_tokens += len(ids)
        delta = None
        if text or part is None or choice.current_segment(part) is None:  # no markup
            delta = self._delta(choice, part, text)
        if delta is None:
            shows_tokens = options.token_ids or options.top_logprobs is not None
            if not is_end and (not shows_tokens or self._hides):
                return None
            delta = wire.Delta()
        elif (
            is_end
            and not text
            and part is None
            and options.parses
            and not options.call_form.text_end
            and (options.parser_runs is not None or not options.empty_thoughts)
        ):
            delta = wire.Delta()
        elif self._hides:
            delta.reasoning = None
        chunk_choice = wire.ChunkChoice(output.index, delta, token_ids=None)
        if options.token_ids and not self._hides:
            chunk_choice.token_ids = ids
        if self._logprobs is not None and output.logprobs is not None:
            entries = [*map(self._logprobs.chat_entry, output.logprobs[span])]
            chunk_choice.logprobs = common.LogprobContent(entries)
        return chunk_choice

    def _delta(self, choice: ChoiceState, part: Part | None, text: str) -> wire.Delta | None:
        """Returns a token's addition to the message; None for markup or a hidden thought."""
        options = self._options
        if part is None:
            if options.blocks:
                return wire.Delta(content=[wire.ContentBlock("text", text)])
            if not text and self._hides:
                return None
            return wire.Delta(content=text)
        if part.kind == "reasoning":
            if options.show_reasoning and (text or options.empty_thoughts):
                return wire.Delta(reasoning=text)
            return None
        if part.kind == "image":
            return wire.Delta(content=[wire.ContentBlock("image_url", image_url={"url": text})])
        return self._call_delta(choice, part, text)

    def _call_delta(self, choice: ChoiceState, part: Part, text: str) -> wire.Delta | None:
        """Returns a token's addition to a tool call; None for markup and for marks of thoughts."""
        options = self._options
        form = options.call_form
        calls: list[wire.ToolCall] = []
        if part.name and choice.current_segment(part) is None:
            segment = choice.open_segment(part)
            segment.id = part.id or options.new_call_id()
            function = wire.FunctionCall(part.name)
            if form.is_joined and text:
                function.arguments = text
                text = ""
            calls.append(wire.ToolCall(segment.id, "function", part.number, function))
        if text:
            call = wire.ToolCall(index=part.number, function=wire.FunctionCall(arguments=text))
            if form.null_id:
                call.id = None
            calls.append(call)
        if not calls:
            return None
        delta = wire.Delta(tool_calls=calls)
        if form.null_content:
            delta.content = None
        return delta

    def _finish_reason(self, choice: ChoiceState) -> str:
        """Returns `tool_calls` for a reply that called tools by choice and was not cut short."""
        reason = choice.finish.reason
        if reason == "stop" and choice.called and not self._options.named_tool:
            return "tool_calls"
        return reason

    def _total_usage(self, missing: None | UnsetType) -> common.Usage:
        options = self._options
        usage = self._count_usage(len(options.prompt_ids), self.choices, missing)
        if options.reasons:
            reasoning_tokens = sum(choice.reasoning_tokens for choice in self.choices)
            usage.completion_tokens_details = common.CompletionTokensDetails(reasoning_tokens)
        if options.prompt_details:
            usage.prompt_tokens_details = common.PromptTokensDetails(
                cached_tokens=self.reported_cached_tokens,
                created_cache_tokens=self.reported_created_tokens,
                multimodal_tokens=options.media_tokens or missing,
            )
        return usage

    def _choice_usage(self, index: int) -> common.Usage:
        choice = self.choices[index]
        usage = self._count_usage(len(self._options.prompt_ids), (choice,))
        usage.completion_tokens_details = None
        if self._options.reasons:
            usage.completion_tokens_details = common.CompletionTokensDetails(
                choice.reasoning_tokens
            )
        return usage

    def whole(self) -> wire.ChatCompletion:
        """Returns the whole answer, once all outputs are collected."""
        options = self._options
        if options.parser_runs is not None:
            for choice in self.choices:
                options.parser_runs["non_streaming", choice.called] += 1
        answer = self._build_answer(wire.ChatCompletion, self._render_choice)
        answer.prompt_logprobs = prompt_entries(self.started.prompt_logprobs)
        answer.prompt_token_ids = options.prompt_ids if options.token_ids else None
        answer.prompt_text = options.prompt_text
        answer.ec_transfer_params = self.encoded_media
        return answer

    def _render_choice(self, index: int, choice: ChoiceState) -> wire.ChatChoice:
        chat_choice = wire.ChatChoice(
            index=index,
            message=self._message(choice),
            logprobs=None,
            finish_reason=self._finish_reason(choice),
            stop_reason=choice.finish.stop_reason,
            token_ids=None,
        )
        chat_choice.weight_versions = self._spans_of(index)
        if self._logprobs is not None:
            entries = rendered(choice.logprobs, self._logprobs.chat_entry)
            chat_choice.logprobs = common.LogprobContent(entries)
        if self._options.token_ids and not self._hides:
            chat_choice.token_ids = choice.ids
        return chat_choice

    def _message(self, choice: ChoiceState) -> wire.ChatMessage:
        options = self._options
        texts = choice.texts_by_kind()
        text = (options.echo or "") + texts["text"]
        message = wire.ChatMessage(options.role, text)
        if "image" in texts:
            blocks: list[wire.ContentBlock] = []
            if text:
                blocks.append(wire.ContentBlock("text", text))
            blocks.append(wire.ContentBlock("image_url", image_url={"url": texts["image"]}))
            message.content = blocks
        elif not text and options.echo is None and not options.forced_tool:
            message.content = None if choice.called or options.reasons else text
        if choice.called:
            message.tool_calls = [
                wire.ToolCall(
                    id=segment.part.id or options.new_call_id(),
                    type="function",
                    function=wire.FunctionCall(segment.part.name, segment.text),
                )
                for segment in choice.segments
                if segment.part is not None and segment.part.kind == "call"
            ]
        if options.show_reasoning:
            message.reasoning = texts.get("reasoning") or None
        return message
