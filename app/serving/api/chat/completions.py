"""POST /v1/chat/completions, its batch, and the answers as vLLM writes them (vllm-api.md 3.3, 3.4)."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from app.engine.core.outputs import Part, Started, Tokens
from app.serving.api.chat.media import BuiltPrompt, features, media_tokens
from app.serving.api.chat.parts import TELLS_EMPTY, check_tool_choice
from app.serving.api.chat.prompt import chat_options, chat_prompt
from app.serving.api.choice_state import ChoiceState
from app.serving.api.identity import ResponseMeta, ResponseOptions
from app.serving.api.logprobs import ALL, TokenNames, prompt_entries, rendered
from app.serving.api.pipeline import IMAGE_HEADER, RequestPipeline, boolean_header, check_repeated
from app.serving.api.writer import CHUNK_END, ChunkWriter, PlainChoice, chunk_end
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import Response
from app.serving.http.route import STREAM_MEDIA, PlainHandler, Route, RouteDocs, post
from app.serving.protocol import chat as wire
from app.serving.protocol import common
from app.serving.protocol.common import EXAMPLE_CHAT, HOLE, encode, template
from app.serving.protocol.options import NamedToolChoice
from app.serving.protocol.validation import ValidatedRequest


class ChatResponseOptions(ResponseOptions, frozen=True, kw_only=True):
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
    parsed: Callable[[bool, bool, int], None] | None = None
    """Counts runs of the parser of tool calls, if any:

    in a stream, found a call, number of runs.
    """
    parses: bool = False
    """Thoughts or calls are parsed out of the text:

    an end that shows nothing has no text at all.
    """
    reasons: bool = False
    """The model thinks: usage counts its thoughts, and without a text the content is null."""
    empty_thoughts: bool = False
    """A token of thoughts that adds no text has its own chunk."""
    show_reasoning: bool = True
    """`include_reasoning`; hidden thoughts also hide tokens and log probabilities."""
    blocks: bool = False
    media_tokens: Mapping[str, int] | None = None

    @property
    def hides(self) -> bool:
        return self.parses and not self.show_reasoning


PLAIN_THOUGHT = PlainChoice(wire.ChunkChoice(HOLE, wire.Delta(reasoning=HOLE), token_ids=None))


class ChatWriter(ChunkWriter[ChatResponseOptions]):
    kind = "chat.completion.chunk"
    plain_text = PlainChoice(wire.ChunkChoice(HOLE, wire.Delta(content=HOLE), token_ids=None))
    _logprobs: TokenNames | None = None

    def __init__(self, meta: ResponseMeta, options: ChatResponseOptions) -> None:
        special = (
            options.token_ids
            or options.continuous_usage
            or options.blocks
            or options.parsed is not None
        )
        super().__init__(meta, options, options.n, options.top_logprobs is None and not special)
        self._on_parsed = options.parsed
        self.image = options.blocks
        is_bare = options.top_logprobs is None and not options.token_ids or options.hides
        self._calls_are_plain = is_bare and not options.beams and not options.continuous_usage
        if options.top_logprobs is not None and not options.hides:
            self._logprobs = TokenNames(options.top_logprobs, options.token_id_names, options.beams)

    def _render_start(self, output: Started) -> bytes:
        """Returns the role chunks of all choices together, when the first choice begins."""
        if self.started is not None:
            return b""
        self.record_start(output)
        options = self._options
        usage = self._choice_usage(0) if options.continuous_usage else UNSET
        ids = options.prompt_ids if options.token_ids else None
        end = chunk_end(common.ChunkTail(usage, UNSET, ids, options.prompt_text))
        openings, chunks = [(wire.Delta(options.role, ""), end)], list[bytes]()
        if options.echo:
            openings.append((wire.Delta(content=options.echo), chunk_end(common.ChunkTail(usage))))
        for delta, end in openings:
            for index in range(options.n):
                chunks += self._head, encode(wire.ChunkChoice(index, delta)), end
        return b"".join(chunks)

    @cached_property
    def _thoughts(self) -> Sequence[bytes]:
        return PLAIN_THOUGHT.prefixes(self._head, self._options.n)

    def _render_plain_thoughts(self, output: Tokens, number: int) -> bytes:
        choice = self.choices[output.index]
        choice.tokens += number
        choice.reasoning_tokens += number
        if not self._options.show_reasoning:
            return b""
        shown = [text for text in output.texts[:number] if text or self._options.empty_thoughts]
        return PLAIN_THOUGHT.render(self._thoughts[output.index], shown)

    def _render_call(self, output: Tokens, part: Part) -> bytes:
        """Returns the name with the first token that knows it, arguments, and the end of the
        choice.
        """
        choice, texts, ends = self.choices[output.index], output.texts, output.finish is not None
        first = int(bool(texts and part.name) and choice.current_segment(part) is None)
        last = max(first, len(texts) - ends)
        chunks = [self._render_token(output, 0)] if first else []
        choice.tokens += len(output.ids[first:last])
        if shown := [text for text in texts[first:last] if text]:
            call = wire.ToolCall(index=part.number, function=wire.FunctionCall(arguments=HOLE))
            delta = wire.Delta(content=None, tool_calls=[call])
            before, end = template(wire.ChunkChoice(output.index, delta, token_ids=None))
            before, end = self._head + before, end + CHUNK_END
            chunks.append(before + (end + before).join(map(encode, shown)) + end)
        if ends and (len(texts) > 1 or not first):
            chunks.append(self._render_token(output, max(0, len(texts) - 1)))
        return b"".join(chunks)

    def _build_choice(
        self, choice: ChoiceState, output: Tokens, of: slice, ends: bool
    ) -> wire.ChunkChoice | None:
        options, part, ids, text = (
            self._options,
            output.part,
            output.ids[of],
            "".join(output.texts[of]),
        )
        if part is not None and part.kind == "reasoning":
            choice.reasoning_tokens += len(ids)
        delta = self._delta(choice, part, text)
        if delta is None:
            has_more = options.token_ids or options.top_logprobs is not None
            if not ends and (not has_more or options.hides):
                return None
            delta = wire.Delta()
        elif ends and part is None and not text and options.parses:
            delta = wire.Delta()
        shown = wire.ChunkChoice(output.index, delta, token_ids=None)
        if options.token_ids and not options.hides:
            shown.token_ids = ids
        if self._logprobs is not None and output.logprobs is not None:
            shown.logprobs = common.LogprobContent(
                [*map(self._logprobs.chat_entry, output.logprobs[of])]
            )
        return shown

    def _delta(self, choice: ChoiceState, part: Part | None, text: str) -> wire.Delta | None:
        """Returns a token's addition to the message; None for markup or a hidden thought."""
        if part is None:
            return wire.Delta(
                content=[wire.ContentBlock("text", text)] if self._options.blocks else text
            )
        if part.kind == "reasoning":
            shows = self._options.show_reasoning and (text or self._options.empty_thoughts)
            return wire.Delta(reasoning=text) if shows else None
        if part.kind == "image":
            return wire.Delta(content=[wire.ContentBlock("image_url", image_url={"url": text})])
        calls: list[wire.ToolCall] = []
        if part.name and choice.current_segment(part) is None:
            begun = choice.open_segment(part)
            begun.id = part.id or self._options.new_call_id()
            calls.append(
                wire.ToolCall(begun.id, "function", part.number, wire.FunctionCall(part.name))
            )
        if text:
            calls.append(
                wire.ToolCall(index=part.number, function=wire.FunctionCall(arguments=text))
            )
        return wire.Delta(content=None, tool_calls=calls) if calls else None

    def _finish_reason(self, choice: ChoiceState) -> str:
        """Returns `tool_calls` for a reply that called tools by choice and was not cut short."""
        reason = choice.finish.reason
        if reason == "stop" and choice.called and not self._options.named_tool:
            return "tool_calls"
        return reason

    def _total_usage(self, missing: None | UnsetType) -> common.Usage:
        options, choices = self._options, self.choices
        usage = self._count_usage(len(options.prompt_ids), choices, missing)
        if options.reasons:
            thoughts = sum(choice.reasoning_tokens for choice in choices)
            usage.completion_tokens_details = common.CompletionTokensDetails(thoughts)
        if options.prompt_details:
            counts = (
                self.reported_cached_tokens,
                self.reported_created_tokens,
                options.media_tokens or missing,
            )
            usage.prompt_tokens_details = common.PromptTokensDetails(*counts)
        return usage

    def _choice_usage(self, index: int) -> common.Usage:
        choice = self.choices[index]
        usage, thoughts = (
            self._count_usage(len(self._options.prompt_ids), (choice,)),
            choice.reasoning_tokens,
        )
        reasons = self._options.reasons
        usage.completion_tokens_details = (
            common.CompletionTokensDetails(thoughts) if reasons else None
        )
        return usage

    def whole(self) -> wire.ChatCompletion:
        options = self._options
        if options.parsed is not None:
            for choice in self.choices:
                options.parsed(False, choice.called, 1)
        answer = self._build_answer(wire.ChatCompletion, self._choice)
        answer.prompt_logprobs = prompt_entries(self.prompt_logprobs)
        answer.prompt_token_ids = options.prompt_ids if options.token_ids else None
        answer.prompt_text, answer.ec_transfer_params = options.prompt_text, self.encoded_media
        return answer

    def _choice(self, index: int, choice: ChoiceState) -> wire.ChatChoice:
        message = self._message(choice)
        logprobs = ids = None
        if self._logprobs is not None:
            logprobs = common.LogprobContent(rendered(choice.logprobs, self._logprobs.chat_entry))
        if self._options.token_ids and not self._options.hides:
            ids = choice.ids
        return wire.ChatChoice(
            index, message, logprobs, self._finish_reason(choice), choice.finish.stop_reason, ids
        )

    def _message(self, choice: ChoiceState) -> wire.ChatMessage:
        options, said = self._options, choice.texts_by_kind()
        text = said["text"] if options.echo is None else options.echo + said["text"]
        message = wire.ChatMessage(options.role, text)
        if "image" in said:
            image = wire.ContentBlock("image_url", image_url={"url": said["image"]})
            message.content = [wire.ContentBlock("text", text), image] if text else [image]
        elif not text and options.echo is None and not options.forced_tool:
            message.content = None if choice.called or options.reasons else text
        if choice.called:
            message.tool_calls = [
                wire.ToolCall(
                    call.part.id or options.new_call_id(),
                    "function",
                    function=wire.FunctionCall(call.part.name, call.text),
                )
                for call in choice.segments
                if call.part is not None and call.part.kind == "call"
            ]
        if options.show_reasoning:
            message.reasoning = said.get("reasoning") or None
        return message


def routes(pipeline: RequestPipeline, plain: PlainHandler | None = None) -> list[Route]:
    def chat_completions(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        request = pipeline.decode(context, wire.ChatCompletionRequest)
        asked = pipeline.admit(request, context)
        if request.tools:
            check_tool_choice(request, pipeline.settings.tools)
        prompt = chat_prompt(pipeline, request, request.messages)
        meta = pipeline.identity.response_meta("chatcmpl", context, request.request_id, asked.model)
        image, model = False, pipeline.settings.model
        if model.omni:  # by the request's own choice, else by a draw
            own = boolean_header(context, IMAGE_HEADER)
            image = (
                pipeline.images.random() * 100 < model.image_emission_rate if own is None else own
            )
        options = response_options(pipeline, asked, meta, request.messages, prompt, image)
        return pipeline.submit(asked, meta, [prompt], ChatWriter(meta, options), context)

    def chat_batch(context: RequestContext) -> Response:
        """The next message of each of several conversations, as the choices of one answer."""
        try:
            request = pipeline.decode(context, wire.BatchChatRequest)
        except ApiError as error:
            # A field that vLLM checks late is refused without a `param`.
            field = (error.param or "").removeprefix("body.").partition(".")[0]
            if error.type != "Bad Request" or field not in wire.BATCH_LATE:
                raise
            raise bad_request(error.message) from None
        asked = pipeline.admit(request, context)
        prompts = [chat_prompt(pipeline, request, messages) for messages in request.messages]
        meta = pipeline.identity.response_meta("chatcmpl", context, request.request_id, asked.model)
        all_ids = list(chain.from_iterable(prompt.ids for prompt in prompts))
        last = request.messages[-1]
        whole = BuiltPrompt(all_ids, "", features=features(last, all_ids))
        if len(prompts) > 1:
            meta = replace(meta, joint="_")
        options = response_options(pipeline, asked, meta, last, whole)
        options = replace(options, n=len(prompts), prompt_details=False, metrics=False)
        return pipeline.submit(asked, meta, prompts, ChatWriter(meta, options), context)

    chat_docs = RouteDocs(
        body=(wire.ChatCompletionRequest,),
        example={"messages": EXAMPLE_CHAT, "max_tokens": 8},
        answer=wire.ChatCompletion,
        media=STREAM_MEDIA,
    )
    batch_docs = RouteDocs(
        body=(wire.BatchChatRequest,),
        example={"messages": [EXAMPLE_CHAT], "max_tokens": 8},
        answer=wire.ChatCompletion,
    )
    return [
        post("/v1/chat/completions", chat_completions, plain=plain, docs=chat_docs),
        post("/v1/chat/completions/batch", chat_batch, docs=batch_docs),
    ]


def response_options(
    pipeline: RequestPipeline,
    asked: ValidatedRequest[wire.ChatCompletionRequest],
    meta: ResponseMeta,
    messages: Sequence[wire.Message],
    prompt: BuiltPrompt,
    image: bool = False,
) -> ChatResponseOptions:
    request, last, ids, media = asked.request, messages[-1], prompt.ids, prompt.features
    role = (
        pipeline.settings.api.response_role if request.add_generation_prompt else str(last["role"])
    )
    choice, top_logprobs = request.tool_choice, None
    if request.logprobs:  # all alternatives when the client names tokens
        top_logprobs = ALL if request.logprob_token_ids else request.top_logprobs
    named = isinstance(choice, NamedToolChoice) and choice.type == "function"
    recorder = pipeline.responder.engine.recorder
    tokens_of: Mapping[str, int] | None = None
    if media and pipeline.settings.api.enable_prompt_tokens_details:
        template, encode = (
            chat_options(request, pipeline.chat_rules),
            pipeline.tokenizer.encode_chat,
        )
        tokens_of = media_tokens(
            messages, media["mm_hashes"], lambda some: len(encode(some, template))
        )
    echo = (
        (wire.content_text(last.get("content")) if last["role"] == role else "")
        if request.echo
        else None
    )
    prompt_text = pipeline.tokenizer.decode(ids, False) if request.return_prompt_text else None
    repeated = (
        len(echo or "") + len(prompt_text or "") + (len(ids) if request.return_token_ids else 0)
    )
    if request.stream and repeated:
        check_repeated("messages", asked.n * repeated)
    return ChatResponseOptions(
        **pipeline.options(asked),
        prompt_ids=ids,
        role=role,
        echo=echo,
        top_logprobs=top_logprobs,
        beams=request.use_beam_search,
        prompt_text=prompt_text,
        named_tool=named,
        forced_tool=named or choice == "required",
        new_call_id=lambda: f"chatcmpl-tool-{pipeline.identity.fresh_id()}",
        parsed=recorder.parsed_tools if request.tools and choice != "none" else None,
        parses=pipeline.limits.parses,
        reasons=pipeline.limits.reasons,
        empty_thoughts=pipeline.settings.reply.reasoning_parser in TELLS_EMPTY,
        show_reasoning=request.include_reasoning,
        blocks=image,
        media_tokens=tokens_of,
    )
