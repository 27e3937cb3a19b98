"""Plain requests on the fast path: from a body to the engine and the answer.

Decoding into one of these structs proves that a body has no other fields and that its numbers are
in range; `PlainGeneration.recognise` checks the rest against the served model. All other requests,
invalid ones included, take the general path, which reports errors.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from app.core.api.chat.writer import ChatResponseOptions, ChatWriter
from app.core.api.completions import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.core.api.headers import (
    CACHE_THRESHOLD_HEADER,
    IMAGE_HEADER,
    PRIORITY_HEADER,
    RANK_HEADER,
)
from app.core.api.identity import ResponseMeta, ResponseOptions
from app.core.api.pipeline import RequestPipeline
from app.core.api.plain_body import PlainBody, plain_body
from app.core.api.writer import ResponseWriter
from app.core.engine.kvcache import PART_BLOCKS
from app.core.engine.request import EngineRequest, Reply
from app.core.engine.sampling import Sampling
from app.core.protocol.common import HOLE
from app.core.protocol.completions import DEFAULT_MAX_TOKENS
from app.core.protocol.options import Int64
from app.core.server.http.context import RequestContext
from app.core.server.http.response import PendingResponse, Response, json_response
from app.core.text.memo import PromptMemo, TextMessage, chat_memo, text_memo

if TYPE_CHECKING:
    from app.core.server.http.route import PlainHandler

SPECIAL_HEADERS = frozenset(
    [
        RANK_HEADER,
        PRIORITY_HEADER,
        IMAGE_HEADER,
        CACHE_THRESHOLD_HEADER,
        "x-fault",
        "x-return-error",
        "endpoint-load-metrics-format",
    ]
)
MAX_TOKENS = 4096
"""Most tokens of a plain reply that has to reach its limit."""
MAX_STOPS = 4
"""Most stop strings of a plain request."""
MAX_LOGPROBS = 512
"""Most log probabilities in the answer to a plain request: rendering them takes about 2 ms."""
MAX_BODIES = 64
"""Most bodies whose requests are cached."""
MAX_BODY_BYTES = 1024
"""Longest body whose request is cached."""

Count = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopText = Annotated[str, Meta(min_length=1, max_length=64)]
Alternatives = Annotated[int, Meta(ge=0, le=20)]


_decode_messages = msgspec.json.Decoder(list[TextMessage]).decode


class PlainStreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """Options of a plain stream."""

    include_usage: bool = False


class PlainRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Fields without effect on a simulated model, or with one effect only."""

    model: str | None = None
    max_tokens: Count | None = None
    stream: bool | None = False
    stream_options: PlainStreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Literal[1] = 1
    seed: Int64 | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    user: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop or ())


class PlainChat(PlainRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A plain chat; messages are parsed only when their bytes are new."""

    messages: Raw
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False
    top_logprobs: Alternatives | None = 0

    def conversation(self) -> list[TextMessage]:
        """Returns the messages, as rules compare them."""
        return _decode_messages(self.messages)

    @property
    def alternatives(self) -> int | None:
        """Alternatives to each token; None without log probabilities."""
        if not self.logprobs:
            return None
        return self.top_logprobs or 0

    @property
    def prompt_key(self) -> bytes:
        """Key of the messages among the known prompts."""
        return bytes(self.messages)

    @property
    def limit(self) -> int | None:
        """Requested limit of the reply, in tokens."""
        if self.max_completion_tokens is None:
            return self.max_tokens
        return self.max_completion_tokens


class PlainCompletion(PlainRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A plain text completion of one text."""

    prompt: str
    logprobs: None = None
    suffix: None = None
    alternatives: ClassVar[None] = None
    top_logprobs: ClassVar[None] = None

    def conversation(self) -> list[TextMessage]:
        """Returns the prompt as a message of the user."""
        return [TextMessage("user", self.prompt)]

    @property
    def prompt_key(self) -> bytes:
        """Key of the text among the known prompts."""
        return self.prompt.encode()

    @property
    def limit(self) -> int | None:
        """Limit of the reply, in tokens."""
        if self.max_tokens is None:
            return DEFAULT_MAX_TOKENS
        return self.max_tokens


class Recognised(Struct, frozen=True):
    """A plain request, and the values derived from it."""

    request: PlainChat | PlainCompletion
    model: str
    """Name of the model in the request, or the served one."""
    prompt_key: bytes
    prompt_ids: Sequence[int]
    max_tokens: int
    options: ResponseOptions
    sampling: Sampling


class PlainGeneration:
    """Answers the plain requests of one family: see `app.core.server.http.route.PlainHandler`.

    Subclasses have what is special to a family.
    """

    special_headers = SPECIAL_HEADERS
    request_type: type[PlainChat | PlainCompletion]
    writer_type: Callable[[ResponseMeta, Any], ResponseWriter]
    schema: str
    """Name of the request's class in vLLM."""
    id_prefix: str
    """Start of the answers' ids."""
    others: "PlainHandler | None" = None
    """Answers further requests, which it recognises as objects of another class."""

    def __init__(self, pipeline: RequestPipeline, known_prompts: PromptMemo) -> None:
        self.known_prompts = known_prompts
        self._pipeline = pipeline
        self._decode = msgspec.json.Decoder(self.request_type).decode
        self._model = pipeline.models.names[0]
        self._defaults = pipeline.builder.defaults
        self._context_tokens = pipeline.limits.max_model_len
        self._max_reply_tokens = pipeline.limits.max_reply_tokens(0)
        self._max_prompt_tokens = PART_BLOCKS * pipeline.live.current.kvcache.block_size
        """Longest prompt that the engine takes without a pause."""
        self._names: frozenset[str | None] = frozenset()
        """Names of the served model; while empty, no request is plain."""
        self._min_hit_rate = 0.0
        self._forced_usage = False
        self._max_alternatives = pipeline.limits.logprobs(pipeline.limits.max_logprobs)
        self._options = self.response_options(n=1)
        self._template: PlainBody | None = None
        """The template of whole answers, made for the first one."""
        self._bodies: dict[bytes, Recognised] = {}
        """Requests with known prompts, by their bodies."""

    def response_options(self, **shared: Any) -> ResponseOptions:
        """Returns the options of answers, without those of a prompt."""
        raise NotImplementedError

    def options_of(
        self, request: Any, prompt_ids: Sequence[int], include_usage: bool
    ) -> ResponseOptions:
        """Returns the options of the answer to one request."""
        raise NotImplementedError

    @staticmethod
    def clear_text(choice: Any) -> None:
        """Replaces the text of a choice of a whole answer by a `HOLE`."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Decides if any request can be plain now, under the settings in force."""
        pipeline = self._pipeline
        settings = pipeline.live.current
        is_special = (
            settings.reply.mode == "echo"
            or pipeline.limits.reasons
            or pipeline.chat_rules.template_kwargs
            or settings.model.omni
            or settings.model.mm_encoder_only
            or pipeline.tokenizer.vocab_size is None  # a remote tokenizer, which takes waiting
            or not pipeline.keeps_fast_path()
            or pipeline.version.shape.lacks_any(
                f"{self.schema}.{name}" for name in self.request_type.__struct_fields__
            )
        )
        self._bodies.clear()
        self._names = frozenset()
        if not is_special:
            # As `ServedModels.resolve`: a request may leave the name out. Adapters are not plain.
            self._names = frozenset((None, "", *pipeline.models.names))
        self._min_hit_rate = settings.kvcache.global_cache_hit_threshold
        self._forced_usage = settings.api.enable_force_include_usage
        self._template = None
        self._options = self.response_options(
            n=1,
            continuous_usage=self._forced_usage and pipeline.limits.rules.continues_forced_usage,
            token_id_names=settings.api.return_tokens_as_token_ids,
            prompt_details=settings.api.enable_prompt_tokens_details,
            metrics=settings.api.enable_per_request_metrics,
            shape=pipeline.version.shape,
        )

    def recognise(self, body: bytes) -> Any:
        """Returns the request in `body`; None, with nothing drawn or counted, when not plain."""
        cached = self._bodies.get(body)
        if cached is not None:
            return cached
        try:
            request = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.others and self.others.recognise(body)
        prompt_key = request.prompt_key
        recognised = self._derive(request, prompt_key, self.known_prompts.ids)
        if (
            recognised is not None
            and len(body) <= MAX_BODY_BYTES
            and prompt_key in self.known_prompts
        ):
            if len(self._bodies) >= MAX_BODIES:
                self._bodies.clear()
            self._bodies[body] = recognised
        return recognised

    def _derive(
        self,
        request: PlainChat | PlainCompletion,
        prompt_key: bytes,
        ids_of: Callable[[bytes], Sequence[int] | None],
    ) -> Recognised | None:
        """Returns the request with the values derived from it; None when it is not plain."""
        stream_options = request.stream_options
        if request.model not in self._names or (stream_options is not None and not request.stream):
            return None
        limit = request.limit
        context_tokens = self._context_tokens
        if limit is not None and limit > context_tokens:
            return None
        prompt_ids = ids_of(prompt_key)
        if not prompt_ids or len(prompt_ids) > self._max_prompt_tokens:
            return None
        # `ModelLimits.max_reply_tokens`, inlined
        room = context_tokens - len(prompt_ids)
        if limit is not None and limit > room and self._pipeline.limits.rules.overflow:
            return None
        max_tokens = min(room, self._max_reply_tokens)
        if limit is not None:
            max_tokens = min(limit, max_tokens)
        if max_tokens < 1 or request.min_tokens > max_tokens:
            return None
        if max_tokens > MAX_TOKENS and (
            limit is not None or request.ignore_eos or request.min_tokens > MAX_TOKENS
        ):
            return None
        has_logprobs = request.logprobs or request.top_logprobs
        if has_logprobs and not self._has_plain_logprobs(request, max_tokens):
            return None
        include_usage = self._forced_usage or (
            stream_options is not None and stream_options.include_usage
        )
        return Recognised(
            request=request,
            model=request.model or self._model,
            prompt_key=prompt_key,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            options=self.options_of(request, prompt_ids, include_usage),
            sampling=self._sampling_of(request),
        )

    def _sampling_of(self, request: PlainChat | PlainCompletion) -> Sampling:
        """Does what `SamplingDefaults.sampling_of` does, for these fields alone."""
        defaults = self._defaults
        temperature = request.temperature
        top_p = request.top_p
        return Sampling(
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            repetition_penalty=defaults.repetition_penalty,
            temperature=defaults.temperature if temperature is None else temperature,
            top_p=defaults.top_p if top_p is None else top_p,
            top_k=defaults.top_k,
            min_p=defaults.min_p,
            seed=request.seed,
            stop=request.stops,
            ignore_eos=request.ignore_eos,
            max_tokens=request.limit,
            min_tokens=request.min_tokens,
            logprobs=request.alternatives,
        ).normalized()

    def _has_plain_logprobs(self, request: PlainChat | PlainCompletion, max_tokens: int) -> bool:
        """Returns whether the log probabilities are few enough; True without any."""
        alternatives = request.alternatives
        if alternatives is None:
            return not request.top_logprobs
        if alternatives > self._max_alternatives or self._pipeline.real is not None:
            return False
        return max_tokens * (1 + alternatives) <= MAX_LOGPROBS

    def answer(self, context: RequestContext, recognised: Any) -> Response | PendingResponse:
        """Answers a recognised request."""
        if type(recognised) is not Recognised and self.others is not None:
            return self.others.answer(context, recognised)
        pipeline = self._pipeline
        request = recognised.request
        context.is_generation = True
        meta = pipeline.identity.response_meta(self.id_prefix, context, "", self._model)
        scripts = pipeline.scripts
        script = None
        usage = None
        if scripts is not None:
            answer = scripts.answer_plain(recognised, context)
            if answer is not None:
                script = answer.reply
                usage = answer.usage
        engine_request = EngineRequest(
            request_id=meta.engine_id(0),
            index=0,
            model=self._model,
            prompt_ids=recognised.prompt_ids,
            echo_text="",
            max_tokens=recognised.max_tokens,
            arrival_s=context.arrival_s,
            sampling=recognised.sampling,
            cache_hit_threshold=self._min_hit_rate,
            script=script,
            observers=context.observers,
        )
        replies = None
        if not request.stream and usage is None:
            reply = pipeline.responder.engine.decide(engine_request)
            if reply is not None:
                body = self._body_at_once(engine_request, reply, meta, recognised)
                if body is not None:
                    return json_response(body, 200, pipeline.responder.headers)
                replies = (reply,)
        writer = self.writer_type(meta, recognised.options)
        if usage is not None:
            writer.usage = usage
        return pipeline.responder.respond_soon(
            (engine_request,),
            writer,
            stream=bool(request.stream),
            context=context,
            replies=replies,
        )

    def _body_at_once(
        self,
        engine_request: EngineRequest,
        reply: Reply,
        meta: ResponseMeta,
        recognised: Recognised,
    ) -> bytes | None:
        """Returns the body of a plain reply that takes no time; None if the request has to run.

        Raises:
            EngineError: as `EngineClient.submit`.
        """
        options = recognised.options
        has_more_fields = options.metrics or options.prompt_details
        if has_more_fields or reply.spans or reply.logprobs is not None:
            return None
        if not self._pipeline.responder.engine.reply_at_once(engine_request, reply):
            return None
        if self._template is None:
            prompt_ids = recognised.prompt_ids
            options = self.options_of(recognised.request, prompt_ids, include_usage=False)
            self._template = plain_body(self.writer_type(meta, options), self.clear_text)
        return self._template.fill(meta, reply, len(engine_request.prompt_ids))


class PlainChats(PlainGeneration):
    """Answers plain chats."""

    request_type = PlainChat
    schema = "ChatCompletionRequest"
    writer_type = ChatWriter
    id_prefix = "chatcmpl"

    def response_options(self, **shared: Any) -> ChatResponseOptions:
        """Returns the options of answers, without those of a prompt."""
        return ChatResponseOptions(
            **shared,
            prompt_ids=(),
            role=self._pipeline.live.current.api.response_role,
            parses=self._pipeline.limits.parses,
            new_call_id=self._pipeline.identity.fresh_call_id,
        )

    def options_of(
        self, request: PlainChat, prompt_ids: Sequence[int], include_usage: bool
    ) -> ResponseOptions:
        """Returns the options of the answer to one request."""
        return replace(
            self._options,
            include_usage=include_usage,
            prompt_ids=prompt_ids,
            top_logprobs=request.alternatives,
        )

    @staticmethod
    def clear_text(choice: Any) -> None:
        """Replaces the text of a choice of a whole answer by a `HOLE`."""
        choice.message.content = HOLE


class PlainCompletions(PlainGeneration):
    """Answers plain text completions."""

    request_type = PlainCompletion
    schema = "CompletionRequest"
    writer_type = CompletionWriter
    id_prefix = "cmpl"

    def response_options(self, **shared: Any) -> CompletionResponseOptions:
        """Returns the options of answers, without those of a prompt."""
        return CompletionResponseOptions(**shared, prompts=())

    def options_of(
        self, request: PlainCompletion, prompt_ids: Sequence[int], include_usage: bool
    ) -> ResponseOptions:
        """Returns the options of the answer to one request."""
        prompts = (EchoedPrompt(prompt_ids),)
        return replace(self._options, include_usage=include_usage, prompts=prompts)

    @staticmethod
    def clear_text(choice: Any) -> None:
        """Replaces the text of a choice of a whole answer by a `HOLE`."""
        choice.text = HOLE


def plain_chats(pipeline: RequestPipeline) -> PlainChats:
    """Returns the fast path of chats."""
    return PlainChats(pipeline, chat_memo(pipeline.tokenizer))


def plain_completions(pipeline: RequestPipeline) -> PlainCompletions:
    """Returns the fast path of text completions."""
    return PlainCompletions(pipeline, text_memo(pipeline.tokenizer))
