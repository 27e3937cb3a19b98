"""Chat completions as vLLM writes them: one JSON body, or server-sent events (vllm-api.md 3.3, 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from msgspec import UNSET, UnsetType

from app.engine.core.outputs import Part, Started, Tokens
from app.serving.api.identity import ResponseMeta, ResponseOptions
from app.serving.api.logprobs import ChatLogprobs, prompt_entries, rendered
from app.serving.api.writer import (
    ChoiceState,
    ChunkWriter,
    PlainChoice,
    chunk_events,
)
from app.serving.protocol.chat import (
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    ChunkChoice,
    Content,
    Delta,
    FunctionCall,
    ImageBlock,
    ImageURL,
    TextBlock,
    ToolCall,
)
from app.serving.protocol.common import (
    HOLE,
    ChunkTail,
    CompletionTokensDetails,
    ECTransferParams,
    KVTransferParams,
    LogprobContent,
    PromptTokensDetails,
    Usage,
)


class ChatResponseOptions(ResponseOptions, frozen=True, kw_only=True):
    prompt_ids: Sequence[int]
    role: str = "assistant"
    echo: str | None = None
    top_logprobs: int | None = None
    """Alternatives shown; None without log probabilities."""
    beams: bool = False
    """The choices are beams. Only the ids of their tokens are known: log probabilities have no bytes."""
    prompt_text: str | None = None
    named_tool: bool = False
    """A named tool had to be called: the reply then ends with `stop`."""
    forced_tool: bool = False
    """A tool had to be called: beside its calls, the reply's text is empty instead of null."""
    new_call_id: Callable[[], str] = str
    """Draws the id of a tool call; `str` where there are none."""
    parsed: Callable[[bool, bool, int], None] | None = None
    """Counts runs of the parser of tool calls, if any: in a stream, found a call, number of runs."""
    parses: bool = False
    """Thoughts or calls are parsed out of the text: an end that shows nothing has no text at all."""
    reasons: bool = False
    """The model thinks: usage counts its thoughts, and without a text the content is null."""
    empty_thoughts: bool = False
    """A token of thoughts that adds no text has its own chunk."""
    show_reasoning: bool = True
    """`include_reasoning`; hidden thoughts also hide tokens and log probabilities."""
    blocks: bool = False
    """The reply has an image, so its text comes as content blocks, too."""
    transfer: KVTransferParams | None = None
    encoded_media: ECTransferParams | None = None
    media_tokens: Mapping[str, int] | None = None

    @property
    def hides(self) -> bool:
        return self.parses and not self.show_reasoning


PLAIN_THOUGHT = PlainChoice(ChunkChoice(HOLE, Delta(reasoning=HOLE), token_ids=None))


class ChatWriter(ChunkWriter[ChatResponseOptions]):
    kind = "chat.completion.chunk"
    plain_text = PlainChoice(ChunkChoice(HOLE, Delta(content=HOLE), token_ids=None))
    _logprobs: ChatLogprobs | None = None

    def __init__(self, meta: ResponseMeta, options: ChatResponseOptions) -> None:
        special = (
            options.token_ids or options.continuous_usage or options.blocks or options.parsed is not None
        )
        super().__init__(meta, options, options.n, options.top_logprobs is None and not special)
        if options.top_logprobs is not None and not options.hides:
            self._logprobs = ChatLogprobs(options.top_logprobs, options.token_id_names, options.beams)

    def _start(self, output: Started) -> bytes:
        """Returns the role chunks of all choices together, when the first choice begins."""
        if self.started is not None:
            return b""
        options, head = self._options, self._head
        self.begin(output)
        usage = self._usage((), UNSET, None) if options.continuous_usage else UNSET
        ids = options.prompt_ids if options.token_ids else None
        tail = ChunkTail(usage, UNSET, ids, options.prompt_text)
        opening = chunk_events(head, Delta(options.role, ""), options.n, tail)
        if not options.echo:
            return opening
        return opening + chunk_events(head, Delta(content=options.echo), options.n, ChunkTail(usage))

    @cached_property
    def _thoughts(self) -> Sequence[bytes]:
        return PLAIN_THOUGHT.begins(self._head, self._options.n)

    def _plain_chunks(self, output: Tokens, number: int) -> bytes:
        if output.part is None:
            return super()._plain_chunks(output, number)
        choice, texts = self.choices[output.index], output.texts[:number]
        choice.tokens += number
        choice.reasoning_tokens += number
        if not self._options.show_reasoning:
            return b""
        shown = texts if self._options.empty_thoughts else [text for text in texts if text]
        return PLAIN_THOUGHT.events(self._thoughts[output.index], shown)

    def _shown(self, choice: ChoiceState, output: Tokens, of: slice, ends: bool) -> ChunkChoice | None:
        options, part, ids, text = self._options, output.part, output.ids[of], "".join(output.texts[of])
        if options.parsed is not None:
            options.parsed(True, part is not None and part.kind == "call", max(1, len(ids)))
        if part is not None and part.kind == "reasoning":
            choice.reasoning_tokens += len(ids)
        delta = self._delta(choice, part, text)
        if delta is None:
            has_more = options.token_ids or options.top_logprobs is not None
            if not ends and (options.hides or not has_more):
                return None
            delta = Delta()
        elif ends and part is None and not text and options.parses:
            delta = Delta()
        shown = ChunkChoice(output.index, delta, token_ids=None)
        if options.token_ids and not options.hides:
            shown.token_ids = ids
        if self._logprobs is not None and output.logprobs is not None:
            shown.logprobs = LogprobContent(self._logprobs.entries(output.logprobs[of]))
        return shown

    def _usage_so_far(self, index: int) -> Usage:
        return self._usage((self.choices[index],), UNSET, None)

    def _delta(self, choice: ChoiceState, part: Part | None, text: str) -> Delta | None:
        """Returns a token's addition to the message; None for markup or a hidden thought."""
        if part is None:
            return Delta(content=[TextBlock(text)] if self._options.blocks else text)
        if part.kind == "reasoning":
            shows = self._options.show_reasoning and (text or self._options.empty_thoughts)
            return Delta(reasoning=text) if shows else None
        if part.kind == "image":
            return Delta(content=[ImageBlock(ImageURL(text))])
        calls: list[ToolCall] = []
        if part.name and choice.current(part) is None:
            begun = choice.begin(part, part.id or self._options.new_call_id())
            calls.append(ToolCall(begun.id, "function", part.number, FunctionCall(part.name)))
        if text:
            calls.append(ToolCall(index=part.number, function=FunctionCall(arguments=text)))
        return Delta(content=None, tool_calls=calls) if calls else None

    def _finish_reason(self, choice: ChoiceState) -> str:
        """Returns `tool_calls` for a reply that called tools by choice and was not cut short."""
        reason = choice.finish.reason
        if reason == "stop" and choice.called and not self._options.named_tool:
            return "tool_calls"
        return reason

    def _whole_usage(self) -> Usage:
        options = self._options
        details: PromptTokensDetails | UnsetType = UNSET
        if options.prompt_details:
            details = PromptTokensDetails(self.told_cached, self.told_created, options.media_tokens or UNSET)
        return self._usage(self.choices, details, UNSET)

    def _usage(
        self,
        choices: Sequence[ChoiceState],
        prompt_details: PromptTokensDetails | None | UnsetType,
        no_thoughts: None | UnsetType,
    ) -> Usage:
        usage = self._usage_of(len(self._options.prompt_ids), choices)
        usage.prompt_tokens_details, usage.completion_tokens_details = prompt_details, no_thoughts
        if self._options.reasons:
            thoughts = sum(choice.reasoning_tokens for choice in choices)
            usage.completion_tokens_details = CompletionTokensDetails(thoughts)
        return usage

    def whole(self) -> ChatCompletion:
        meta, options = self._meta, self._options
        if options.parsed is not None:
            for choice in self.choices:
                options.parsed(False, choice.called, 1)
        details = None
        if options.prompt_details:
            details = PromptTokensDetails(self.told_cached, self.told_created, options.media_tokens)
        return ChatCompletion(
            id=meta.id,
            created=meta.created,
            model=meta.model,
            choices=self.each_choice(self._choice),
            system_fingerprint=meta.fingerprint,
            usage=self._usage(self.choices, details, None),
            prompt_logprobs=prompt_entries(self.prompt_logprobs),
            prompt_token_ids=options.prompt_ids if options.token_ids else None,
            prompt_text=options.prompt_text,
            kv_transfer_params=options.transfer,
            ec_transfer_params=options.encoded_media,
            metrics=self.timing() if options.metrics else None,
        )

    def _choice(self, index: int, choice: ChoiceState) -> ChatChoice:
        message = self._message(choice)
        logprobs = ids = None
        if self._logprobs is not None:
            logprobs = LogprobContent(rendered(choice.logprobs, self._logprobs.entries))
        if self._options.token_ids and not self._options.hides:
            ids = choice.ids
        return ChatChoice(
            index, message, logprobs, self._finish_reason(choice), choice.finish.stop_reason, ids
        )

    def _message(self, choice: ChoiceState) -> ChatMessage:
        options, texts = self._options, choice.texts
        if options.echo is not None:
            texts = [options.echo, *texts]
        if not choice.segments and not options.reasons:
            return ChatMessage(options.role, "".join(texts))
        message = ChatMessage(options.role, self._content(choice, texts))
        if choice.called:
            message.tool_calls = [
                ToolCall(
                    call.part.id or options.new_call_id(),
                    "function",
                    function=FunctionCall(call.part.name, call.text),
                )
                for call in choice.segments
                if call.part is not None and call.part.kind == "call"
            ]
        thoughts = choice.texts_of("reasoning")
        if options.show_reasoning and any(thoughts):
            message.reasoning = "".join(thoughts)
        return message

    def _content(self, choice: ChoiceState, texts: Sequence[str]) -> Content | None:
        said = any(texts)
        if images := choice.texts_of("image"):
            text = [TextBlock("".join(texts))] if said else []
            return [*text, ImageBlock(ImageURL("".join(images)))]
        options = self._options
        is_open = options.echo is None and not options.forced_tool
        if is_open and not said and (choice.called or options.reasons):
            return None
        return "".join(texts)
