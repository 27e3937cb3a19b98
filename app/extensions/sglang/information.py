"""Routes that describe the server to routers: model, settings, loads, health; and a cache reset.

Start with `information_routes`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import gevent
import msgspec
from gevent.event import Event
from msgspec import Meta, Struct

from app.core.api.errors import as_api_error
from app.core.base.metrics.instruments import CONTENT_TYPE
from app.core.engine.kvcache.publishing import of_rank
from app.core.engine.outputs import EngineOutput, Failed, Tokens
from app.core.engine.request import EngineRequest
from app.core.engine.sampling import Sampling
from app.core.protocol.decoding import decode_query
from app.core.server.http.errors import malformed
from app.core.server.http.response import TEXT, Response, json_response
from app.core.server.http.route import EMPTY_ANSWER, Handler, Route, RouteDocs
from app.core.text.files import model_config
from app.extensions.sglang.errors import form_error
from app.extensions.sglang.loads import LoadReader, RankLoad, short_loads
from config.declaration import port_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.core.engine.client import EngineClient
    from app.core.extensions import ServerParts
    from app.core.protocol.coercion import JsonObject
    from app.core.server.http.context import RequestContext

SGLANG_VERSION = "0.5.23"
"""Release of SGLang whose interface the dialect has."""
HEALTH_TIMEOUT_S = 20.0
"""Longest wait of /health_generate for a token, as in SGLang."""
PROBE_INTERVAL_S = 0.1
"""Interval at which /health_generate looks for tokens of other requests."""
SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues", "all")
FIELDS_OF_SECTIONS = {"memory": "memory", "disagg": "disaggregation", "queues": "queues"}
"""Section of the query -> field of a load."""
METRIC_PREFIXES = {"disaggregation": "disagg"}


class LoadsQuery(Struct):
    """The query of ``GET /v1/loads``; `include` lists sections, separated by commas."""

    dp_rank: int | None = None
    include: str | None = None
    format: Literal["json", "prometheus"] | None = None


class FlushQuery(Struct):
    """The query of ``/flush_cache``. Running requests are not awaited, whatever the `timeout`."""

    timeout: Annotated[float, Meta(ge=0)] = 0.0


class Information:
    """Handlers of the routes."""

    def __init__(self, parts: ServerParts, loads: LoadReader) -> None:
        self._parts = parts
        self._loads = loads

    def model_info(self, context: RequestContext) -> Response:
        """The model: names, tokenizer, and its kind."""
        parts = self._parts
        model = parts.settings.model
        config = model_config(model.model)
        takes_media = bool(model.multimodal)
        return json_response(
            {
                "model_path": model.model,
                "served_model_name": model.served_names[0],
                "tokenizer_path": parts.settings.tokenizer.tokenizer or model.model,
                "is_generation": model.task == "generate",
                "preferred_sampling_params": None,
                "weight_version": parts.weights.version,
                "load_format": "auto",
                "reasoning_parser": parts.settings.reply.reasoning_parser or None,
                "tool_call_parser": parts.settings.tools.tool_call_parser or None,
                "disaggregation_mode": "null",
                "has_image_understanding": takes_media,
                "has_audio_understanding": takes_media,
                "model_type": config.get("model_type"),
                "architectures": config.get("architectures"),
            }
        )

    def server_info(self, context: RequestContext) -> Response:
        """The settings under SGLang's names, and the state of each rank."""
        parts = self._parts
        settings = parts.settings
        model = settings.model
        max_model_len = parts.pipeline.limits.max_model_len
        states = []
        for load in self._loads.loads():
            state: JsonObject = {
                "last_gen_throughput": load.gen_throughput,
                "memory_usage": {"token_capacity": load.max_total_num_tokens},
                "max_running_requests_per_dp": load.max_running_requests,
            }
            states.append(state)
        return json_response(
            {
                "model_path": model.model,
                "served_model_name": model.served_names[0],
                "tokenizer_path": parts.settings.tokenizer.tokenizer or model.model,
                "host": parts.server.host,
                "port": parts.server.port,
                "context_length": max_model_len,
                "dp_size": parts.server.engines_per_port,
                "tp_size": model.tensor_parallel_size,
                "pp_size": 1,
                "page_size": settings.kvcache.block_size,
                "max_running_requests": settings.scheduling.max_num_seqs,
                "max_queued_requests": settings.scheduling.max_waiting_queue_length,
                "disable_radix_cache": not settings.kvcache.enable_kvcache,
                "disaggregation_mode": "null",
                "enable_metrics": not settings.metrics.disable_log_stats,
                "status": "ready",
                "max_total_num_tokens": self._loads.max_total_tokens,
                "max_req_input_len": max_model_len - 1,
                "kv_events": self._kv_events(),
                "internal_states": states,
                "version": SGLANG_VERSION,
                "frontend": "python",
            }
        )

    def _kv_events(self) -> JsonObject | None:
        """Returns where KV events are published; None if a router cannot find the address."""
        parts = self._parts
        kv_events = parts.kv_events
        endpoint = kv_events.endpoint
        if not endpoint or parts.cache is None or not endpoint.startswith("tcp://"):
            return None
        first = kv_events.rank
        host, _, _ = endpoint.removeprefix("tcp://").rpartition(":")
        described: JsonObject = {
            "publisher": "zmq",
            "endpoint_host": host,
            "endpoint_port_base": port_of(of_rank(endpoint, first)),
            "topic": kv_events.topic,
            "block_size": parts.settings.kvcache.block_size,
            "dp_size": parts.server.engines_per_port,
        }
        if kv_events.replay_endpoint and kv_events.replay_endpoint.startswith("tcp://"):
            described["replay_endpoint_port_base"] = port_of(
                of_rank(kv_events.replay_endpoint, first)
            )
        return described

    def get_load(self, context: RequestContext) -> Response:
        """Requests and tokens of each rank, as older routers read them."""
        return json_response(short_loads(self._loads.loads()))

    def v1_loads(self, context: RequestContext) -> Response:
        """The load of each rank, in sections."""
        query = decode_query(context.query(), LoadsQuery)
        sections = sections_of(query.include)
        loads = self._loads.loads()
        if query.dp_rank is not None:
            loads = [load for load in loads if load.dp_rank == query.dp_rank]
        shown = [shown_load(load, sections) for load in loads]
        if query.format == "prometheus":
            return Response(prometheus_text(shown).encode(), content_type=CONTENT_TYPE)
        return json_response(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": SGLANG_VERSION,
                "accelerator": None,
                "num_accelerators": self._parts.settings.model.tensor_parallel_size,
                "loads": shown,
            }
        )

    def health_generate(self, context: RequestContext) -> Response:
        """200 once a token has been generated, for this request or for another; else 503."""
        engine = self._parts.engine
        if not self._parts.is_ready() or not generates(engine, self._probe(context)):
            return Response(b"", 503)
        return Response()

    def _probe(self, context: RequestContext) -> EngineRequest:
        parts = self._parts
        return EngineRequest(
            request_id=f"HEALTH_CHECK_{parts.pipeline.identity.fresh_id()}",
            index=0,
            model=parts.pipeline.models.names[0],
            prompt_ids=[0],
            echo_text="",
            max_tokens=1,
            sampling=Sampling(max_tokens=1),
            arrival_s=context.arrival_s,
        )

    def flush_cache(self, context: RequestContext) -> Response:
        """Empties the prefix cache, unless requests run or wait."""
        decode_query(context.query(), FlushQuery)
        engine = self._parts.engine
        is_flushed = not engine.is_generating and self._parts.lifecycle.reset_prefix_cache()
        if is_flushed:
            return Response(b"Cache flushed.\n", content_type=TEXT)
        message = f"Cache not flushed: {engine.running} requests run, {engine.waiting} wait.\n"
        return Response(message.encode(), 400, content_type=TEXT)


def generates(engine: EngineClient, probe: EngineRequest) -> bool:
    """Returns whether the engine emits a token, for `probe` or any other request, in time."""
    answered = Event()

    def emit(output: EngineOutput) -> None:
        if type(output) is Failed or (type(output) is Tokens and output.finish is not None):
            answered.set()

    generated = engine.recorder.figures().generated
    try:
        handle = engine.submit([probe], emit)
    except Exception as error:
        # A full queue shows that requests are served, if tokens come meanwhile.
        if as_api_error(error).status != 429:
            return False
        handle = None
    try:
        with gevent.Timeout(HEALTH_TIMEOUT_S, False):
            while not answered.wait(PROBE_INTERVAL_S):
                if engine.recorder.figures().generated > generated:
                    return True
            return True
        return False
    finally:
        if handle is not None:
            handle.abort()


def sections_of(include: str | None) -> frozenset[str]:
    """Returns the sections that the query `include` names; all by default.

    Raises:
        ApiError: 400 for an unknown section.
    """
    if not include:
        return frozenset(SECTIONS)
    names = frozenset(name.strip() for name in include.split(","))
    unknown = sorted(names - frozenset(SECTIONS))
    if unknown:
        raise malformed(f"Invalid include options: {unknown}. Valid options: {sorted(SECTIONS)}")
    if "all" in names:
        return frozenset(SECTIONS)
    return names


def shown_load(load: RankLoad, sections: frozenset[str]) -> JsonObject:
    """Returns a load with the numbers of all requests, and the requested sections."""
    shown: JsonObject = msgspec.to_builtins(load)
    for section, field in FIELDS_OF_SECTIONS.items():
        if section not in sections:
            del shown[field]
    return shown


def prometheus_text(loads: Sequence[JsonObject]) -> str:
    """Returns the loads as gauges in Prometheus' text format."""
    samples: dict[str, list[str]] = {}
    for load in loads:
        label = f'{{dp_rank="{load["dp_rank"]}"}}'
        for name, value in load.items():
            numbers = {name: value}
            if isinstance(value, dict):
                prefix = METRIC_PREFIXES.get(name, name)
                numbers = {f"{prefix}_{key}": number for key, number in value.items()}
            for key, number in numbers.items():
                if key != "dp_rank" and isinstance(number, int | float):
                    samples.setdefault(f"sglang_{key}", []).append(f"{label} {number}")
    lines = []
    for metric, values in samples.items():
        lines.append(f"# TYPE {metric} gauge")
        lines += [f"{metric}{value}" for value in values]
    return "\n".join(lines) + "\n"


def information_routes(parts: ServerParts, loads: LoadReader) -> list[Route]:
    """Returns the routes."""
    handlers = Information(parts, loads)

    def route(
        path: str, handle: Handler, *, methods: tuple[str, ...] = ("GET",), docs: RouteDocs
    ) -> Route:
        return Route(methods=methods, path=path, handle=handle, on_error=form_error, docs=docs)

    any_json = RouteDocs()
    return [
        route("/model_info", handlers.model_info, docs=any_json),
        route("/get_model_info", handlers.model_info, docs=any_json),
        route("/server_info", handlers.server_info, docs=any_json),
        route("/get_server_info", handlers.server_info, docs=any_json),
        route("/get_load", handlers.get_load, docs=any_json),
        route("/v1/loads", handlers.v1_loads, docs=RouteDocs(query=LoadsQuery)),
        route("/health_generate", handlers.health_generate, docs=EMPTY_ANSWER),
        route(
            "/flush_cache",
            handlers.flush_cache,
            methods=("GET", "POST"),
            docs=RouteDocs(query=FlushQuery),
        ),
    ]
