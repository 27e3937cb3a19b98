"""Plain requests on the fast path: from a recognised body to the engine and the answer."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from app.engine.core.request import EngineRequest
from app.serving.api.chat.writer import ChatResponseOptions, ChatWriter
from app.serving.api.completions import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.serving.api.identity import ResponseMeta
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.writer import ResponseWriter
from app.serving.http.context import RequestContext
from app.serving.http.response import PendingResponse, Response
from app.serving.protocol.plain import PlainChat, PlainCompletion, PlainReader, PlainRequest, Recognised
from app.serving.protocol.validation import GREEDY_BELOW
from app.text.memo import KnownChats, KnownPrompts, KnownTexts
from config.settings import Settings

SPECIAL_HEADERS = frozenset(
    (
        *("x-fault", "x-return-error", "x-send-image", "x-vllm-priority"),
        *("x-data-parallel-rank", "x-cache-threshold-finish-reason", "endpoint-load-metrics-format"),
    )
)
"""Headers of features that a plain request cannot use."""

P = TypeVar("P", bound=PlainRequest)


class PlainGeneration(Generic[P]):
    """Answers the plain requests of one family: see `app.serving.http.route.PlainHandler`."""

    special_headers = SPECIAL_HEADERS
    id_prefix = ""

    def __init__(self, pipeline: RequestPipeline, kind: type[P], known: KnownPrompts) -> None:
        """`kind` is the type of the family's plain requests; `known` has the tokens of their prompts."""
        self.known = known
        self._pipeline = pipeline
        self._reader = PlainReader(kind, known.ids, pipeline.limits, pipeline.plain_prompt_tokens)
        self._model = pipeline.models.names[0]
        self._least_hit_rate = 0.0
        self.recognise = self._reader.recognise

    def on_settings(self, settings: Settings) -> None:
        """Decides if any request can be plain now. Subscribe it after the fault injector."""
        pipeline = self._pipeline
        special = (
            settings.reply.mode == "echo"
            or settings.replay.replay != ""
            or pipeline.limits.reasons
            or pipeline.chat_rules.template_kwargs
            or pipeline.omni
            or pipeline.encoder_only
            or pipeline.keeps_turns
            or pipeline.scripts is not None
            or pipeline.asks_plugins
            or pipeline.tokenizer.vocab_size is None  # a remote tokenizer, which takes waiting
            or not pipeline.faults.is_quiet
        )
        self._reader.names = frozenset() if special else frozenset((None, "", *pipeline.models.names))
        self._least_hit_rate = settings.kvcache.global_cache_hit_threshold

    def options(self, request: P) -> dict[str, Any]:
        """Returns the fields of `ResponseOptions` for a plain request."""
        pipeline, options = self._pipeline, request.stream_options
        return {
            "n": 1,
            "include_usage": pipeline.force_usage or (options is not None and options.include_usage),
            "continuous_usage": pipeline.force_usage,
            "prompt_details": pipeline.prompt_details,
            "metrics": pipeline.request_metrics,
        }

    def writer(self, recognised: Recognised[P], meta: ResponseMeta) -> ResponseWriter:
        raise NotImplementedError

    def answer(self, context: RequestContext, recognised: Recognised[P]) -> Response | PendingResponse:
        pipeline, request = self._pipeline, recognised.request
        context.is_generation = True
        meta = pipeline.identity.response_meta(self.id_prefix, context, "", self._model)
        temperature, real = request.temperature, pipeline.builder.real
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
            sampling=None if real is None else real.defaults.of_plain(request),
            cache_hit_threshold=self._least_hit_rate,
            observers=context.observers,
        )
        writer = self.writer(recognised, meta)
        return pipeline.responder.respond_soon((wanted,), writer, bool(request.stream), context)


class PlainChats(PlainGeneration[PlainChat]):
    id_prefix = "chatcmpl"

    def __init__(self, pipeline: RequestPipeline) -> None:
        super().__init__(pipeline, PlainChat, KnownChats(pipeline.tokenizer))

    def writer(self, recognised: Recognised[PlainChat], meta: ResponseMeta) -> ChatWriter:
        pipeline = self._pipeline
        options = ChatResponseOptions(
            **self.options(recognised.request),
            prompt_ids=recognised.prompt_ids,
            role=pipeline.response_role,
            parses=pipeline.limits.parses,
        )
        return ChatWriter(meta, options)


class PlainCompletions(PlainGeneration[PlainCompletion]):
    id_prefix = "cmpl"

    def __init__(self, pipeline: RequestPipeline) -> None:
        super().__init__(pipeline, PlainCompletion, KnownTexts(pipeline.tokenizer))

    def writer(self, recognised: Recognised[PlainCompletion], meta: ResponseMeta) -> CompletionWriter:
        prompts = (EchoedPrompt(recognised.prompt_ids),)
        options = CompletionResponseOptions(**self.options(recognised.request), prompts=prompts)
        return CompletionWriter(meta, options)
