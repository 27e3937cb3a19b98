"""Plain requests on the fast path: from a body to the engine and the answer.

Decoding into one of these structs proves that a body has no other fields and that its numbers are
in range; `PlainGeneration.recognise` checks the rest against the served model. All other requests,
invalid ones included, take the general path, which reports errors.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from app.engine.core.request import EngineRequest
from app.engine.kvcache.hashing import PART_BLOCKS
from app.serving.api.chat.completions import ChatResponseOptions, ChatWriter
from app.serving.api.completions import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.serving.api.identity import ResponseMeta, ResponseOptions
from app.serving.api.pipeline import CACHE_THRESHOLD, PRIORITY, RANK, SEND_IMAGE, RequestPipeline
from app.serving.api.writer import ResponseWriter
from app.serving.http.context import RequestContext
from app.serving.http.response import PendingResponse, Response
from app.serving.protocol.completions import DEFAULT_MAX_TOKENS
from app.serving.protocol.options import Int64
from app.serving.protocol.validation import GREEDY_BELOW
from app.text.memo import PromptMemo, chat_memo, text_memo
from config.settings import Settings

SPECIAL_HEADERS = frozenset(
    (
        RANK,
        PRIORITY,
        SEND_IMAGE,
        CACHE_THRESHOLD,
        "x-fault",
        "x-return-error",
        "endpoint-load-metrics-format",
    )
)
MOST_TOKENS = 4096
MOST_BODIES, BODY_BYTES = 64, 1024
"""Most bodies that are kept read, and the longest of these."""

Count = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class PlainStreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
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
    stop: None = None
    user: str | None = None


class PlainChat(PlainRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A plain chat; messages are parsed only when their bytes are new."""

    messages: Raw
    max_completion_tokens: Count | None = None

    @property
    def prompt_key(self) -> bytes:
        return bytes(self.messages)

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class PlainCompletion(PlainRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    prompt: str
    logprobs: None = None
    suffix: None = None

    @property
    def prompt_key(self) -> bytes:
        return self.prompt.encode()

    @property
    def limit(self) -> int | None:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens


class Recognised(Struct, frozen=True):
    request: PlainChat | PlainCompletion
    prompt_key: bytes
    prompt_ids: Sequence[int]
    max_tokens: int
    limited: bool
    options: ResponseOptions


class PlainGeneration:
    """Answers the plain requests of one family: see `app.serving.http.route.PlainHandler`."""

    special_headers = SPECIAL_HEADERS

    def __init__(
        self,
        pipeline: RequestPipeline,
        kind: type[PlainChat | PlainCompletion],
        id_prefix: str,
        known: PromptMemo,
        options: Callable[..., ResponseOptions],
        prompt: Callable[[Sequence[int]], dict[str, Any]],
        writer: Callable[[ResponseMeta, Any], ResponseWriter],
    ) -> None:
        """`options` adds the family's own to the shared ones; `prompt` returns a prompt's own."""
        self.known, self._id_prefix, self._options_of, self._writer = (
            known,
            id_prefix,
            options,
            writer,
        )
        self._pipeline, self._prompt = pipeline, prompt
        self._decode = msgspec.json.Decoder(kind).decode
        self._prompt_ids = known.ids
        self._model = pipeline.models.names[0]
        self._context_tokens = pipeline.limits.max_model_len
        self._longest_reply = pipeline.limits.max_reply_tokens(0)
        self._most_prompt_tokens = PART_BLOCKS * pipeline.settings.kvcache.block_size
        """Longest prompt that the engine takes without a pause."""
        self._names: frozenset[str | None] = frozenset()
        """Names of the served model; while empty, no request is plain."""
        self._least_hit_rate = 0.0
        self._forced_usage = False
        self._options = options(n=1)
        self._bodies: dict[bytes, Recognised] = {}
        """Requests with known prompts, by their bodies."""

    def on_settings(self, settings: Settings) -> None:
        """Decides if any request can be plain now. Subscribe it after the fault injector."""
        pipeline = self._pipeline
        special = (
            settings.reply.mode == "echo"
            or pipeline.limits.reasons
            or pipeline.chat_rules.template_kwargs
            or settings.model.omni
            or settings.model.mm_encoder_only
            or pipeline.tokenizer.vocab_size is None  # a remote tokenizer, which takes waiting
            or not pipeline.keeps_fast_path(settings)
        )
        self._bodies.clear()
        self._names = frozenset() if special else frozenset((None, "", *pipeline.models.names))
        self._least_hit_rate = settings.kvcache.global_cache_hit_threshold
        self._forced_usage = settings.api.enable_force_include_usage
        self._options = self._options_of(
            n=1,
            continuous_usage=self._forced_usage,
            prompt_details=settings.api.enable_prompt_tokens_details,
            metrics=settings.api.enable_per_request_metrics,
        )

    def recognise(self, body: bytes) -> Recognised | None:
        """Returns the request in `body`; None, with nothing drawn or counted, when not plain."""
        if (known := self._bodies.get(body)) is not None:
            return known
        recognised = self._read(body)
        if (
            recognised is not None
            and len(body) <= BODY_BYTES
            and recognised.prompt_key in self.known
        ):
            if len(self._bodies) >= MOST_BODIES:
                self._bodies.clear()
            self._bodies[body] = recognised
        return recognised

    def _read(self, body: bytes) -> Recognised | None:
        try:
            request = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if request.model not in self._names or (
            request.stream_options is not None and not request.stream
        ):
            return None
        limit, context_tokens = request.limit, self._context_tokens
        if limit is not None and limit > context_tokens:
            return None
        key = request.prompt_key
        ids = self._prompt_ids(key)
        if not ids or len(ids) > self._most_prompt_tokens:
            return None
        room = min(context_tokens - len(ids), self._longest_reply)  # `max_reply_tokens`, inlined
        most = room if limit is None else min(limit, room)
        if most < 1 or request.min_tokens > most:
            return None
        if most > MOST_TOKENS and (
            limit is not None or request.ignore_eos or request.min_tokens > MOST_TOKENS
        ):
            return None
        wanted = request.stream_options
        usage = self._forced_usage or (wanted is not None and wanted.include_usage)
        options = replace(self._options, include_usage=usage, **self._prompt(ids))
        return Recognised(request, key, ids, most, limit is not None, options)

    def answer(self, context: RequestContext, recognised: Recognised) -> Response | PendingResponse:
        pipeline, request = self._pipeline, recognised.request
        context.is_generation = True
        meta = pipeline.identity.response_meta(self._id_prefix, context, "", self._model)
        temperature, real, sampling = request.temperature, pipeline.real, None
        if real is not None:
            penalties = request.presence_penalty, request.frequency_penalty
            sampling = real.defaults.of_plain(temperature, request.top_p, *penalties)
        wanted = EngineRequest(
            request_id=meta.engine_id(0),
            index=0,
            model=self._model,
            prompt_ids=recognised.prompt_ids,
            echo_text="",
            max_tokens=recognised.max_tokens,
            limited=recognised.limited,
            arrival_s=context.arrival_s,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            seed=None if request.seed == -1 else request.seed,
            greedy=temperature is not None and temperature < GREEDY_BELOW,
            sampling=sampling,
            cache_hit_threshold=self._least_hit_rate,
            observers=context.observers,
        )
        writer = self._writer(meta, recognised.options)
        return pipeline.responder.respond_soon((wanted,), writer, bool(request.stream), context)


def plain_chats(pipeline: RequestPipeline) -> PlainGeneration:
    def options(**shared: Any) -> ChatResponseOptions:
        role, parses = pipeline.settings.api.response_role, pipeline.limits.parses
        return ChatResponseOptions(**shared, prompt_ids=(), role=role, parses=parses)

    known, prompt = chat_memo(pipeline.tokenizer), lambda ids: {"prompt_ids": ids}
    return PlainGeneration(pipeline, PlainChat, "chatcmpl", known, options, prompt, ChatWriter)


def plain_completions(pipeline: RequestPipeline) -> PlainGeneration:
    def options(**shared: Any) -> CompletionResponseOptions:
        return CompletionResponseOptions(**shared, prompts=())

    known, prompt = text_memo(pipeline.tokenizer), lambda ids: {"prompts": (EchoedPrompt(ids),)}
    return PlainGeneration(
        pipeline, PlainCompletion, "cmpl", known, options, prompt, CompletionWriter
    )
