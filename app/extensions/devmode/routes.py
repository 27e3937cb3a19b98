"""Development routes:

sleep, pause, caches, server info, profiler, elastic ranks, weights of trainers.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeVar

from gevent.event import Event
from msgspec import Meta, Struct

from app.core.api.admin import ANY_OBJECT, EMPTY_ANSWER, action
from app.core.engine.lifecycle import Operations, WeightUpdates
from app.core.engine.wire import DEEPEST_SLEEP, PauseMode
from app.core.protocol import decoding
from app.core.protocol.coercion import JsonObject
from app.core.server.http.client_connection import watched
from app.core.server.http.context import BodyLimits, RequestContext
from app.core.server.http.errors import ApiError, bad_request, internal, malformed
from app.core.server.http.route import NO_DOCS, NO_MEDIA, Route, RouteDocs


class SleepQuery(Struct):
    level: Annotated[int, Meta(ge=0, le=DEEPEST_SLEEP)] = 1
    mode: PauseMode = "abort"


class WakeQuery(Struct):
    """The query of ``POST /wake_up``, which the handler reads without this type."""

    tags: list[str]


class PauseQuery(Struct):
    mode: PauseMode = "abort"
    clear_cache: bool = True


class ResetQuery(Struct):
    reset_running_requests: bool = False
    reset_external: bool = False
    """Without effect: no connector keeps blocks beyond the cache."""


class WorldSizeQuery(Struct):
    include_dp: bool = True


class InitTransferRequest(decoding.Request, kw_only=True):
    init_info: JsonObject


class UpdateWeightsRequest(decoding.Request, kw_only=True):
    """The body of ``POST /update_weights``; a list has one object per device."""

    update_info: JsonObject | list[JsonObject]


class FinishUpdateRequest(decoding.Request, kw_only=True):
    weight_version: str | None = None


class WeightVersionRequest(decoding.Request, kw_only=True):
    new_version: str


class WeightCheckRequest(decoding.Request, kw_only=True):
    action: Literal["checksum", "reset", "compare"]
    baseline: dict[str, str] | None = None


PREFIX = re.compile(r"[a-zA-Z0-9][\w.-]{0,127}", re.ASCII)
KINDS = {"profile_prefix": str, "delay_iterations": int, "max_iterations": int}


class StartProfileRequest(decoding.Request, kw_only=True):
    """The body of ``POST /start_profile``; vLLM converts no other types to its fields."""

    profile_prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None

    def check_rules(self: "StartProfileRequest | decoding.RawRequest") -> None:
        for name, kind in KINDS.items():
            value = getattr(self, name)
            if value is not None and type(value) is not kind:
                raise malformed(f"body.{name}: expected {kind.__name__}", f"body.{name}")
            if isinstance(value, int) and value < 0:
                raise bad_request(f"{name} must be 0 or more")
        if self.profile_prefix is not None and not PREFIX.fullmatch(self.profile_prefix):
            raise bad_request(
                "profile_prefix must be up to 128 letters, digits and ._-, the first no sign"
            )


class InfoQuery(Struct):
    config_format: Literal["text", "json"] = "text"


def routes(
    lifecycle: Operations, sleeps: bool, settings: Callable[[], Mapping[str, object]]
) -> list[Route]:
    """Returns the routes.

    `sleeps` is `enable-sleep-mode`; `settings` returns all settings for display.
    """

    def sleep(context: RequestContext) -> object:
        """Puts the model to sleep: level 0 pauses, 1 offloads the weights, 2 discards them."""
        query = decoding.decode_query(context.query(), SleepQuery)
        if sleeps:
            left = Event()
            with watched(context.connection, left.set):
                lifecycle.sleep(query.level, query.mode, left)
        return {"status": "sleeping", "level": query.level}

    def release_kv_cache_memory(context: RequestContext) -> object:
        """Frees the KV cache of a paused server; POST /wake_up?tags=kv_cache takes the memory back."""
        if sleeps:
            lifecycle.release_cache()
        return {"status": "kv_cache_released"}

    def wake_up(context: RequestContext) -> object:
        """Wakes the model up, or only the parts that `tags` name."""
        tags = list(context.arguments("tags")) or None
        return {"status": "awake" if lifecycle.wake_up(tags) else "sleeping", "tags": tags}

    def is_sleeping(context: RequestContext) -> object:
        """True while the model sleeps or is paused."""
        return {"is_sleeping": lifecycle.is_sleeping or lifecycle.paused}

    def pause(context: RequestContext) -> object:
        """Stops starting requests; `mode` decides about running requests."""
        query, left = decoding.decode_query(context.query(), PauseQuery), Event()
        with watched(context.connection, left.set):
            lifecycle.pause(query.mode, left, query.clear_cache)
        return {"status": "paused"}

    def resume(context: RequestContext) -> object:
        """Starts requests again."""
        lifecycle.resume()
        return {"status": "resumed"}

    def is_paused(context: RequestContext) -> object:
        """True while new requests have to wait."""
        return {"is_paused": lifecycle.paused}

    def reset_prefix_cache(context: RequestContext) -> object:
        """Empties the prefix cache."""
        query = decoding.decode_query(context.query(), ResetQuery)
        return {"success": lifecycle.reset_prefix_cache(query.reset_running_requests)}

    def reset_media(context: RequestContext) -> None:
        """Succeeds: no media are cached here."""

    def server_info(context: RequestContext) -> object:
        """The settings, as text or as JSON."""
        now: object = settings()
        if decoding.decode_query(context.query(), InfoQuery).config_format == "text":
            now = ", ".join(f"{name}={value!r}" for name, value in settings().items())
        return {"vllm_config": now, "vllm_env": {}, "system_env": {}}

    return [
        action("POST /sleep", sleep, RouteDocs(query=SleepQuery)),
        action("POST /release_kv_cache_memory", release_kv_cache_memory),
        action("POST /wake_up", wake_up, RouteDocs(query=WakeQuery)),
        action("POST /pause", pause, RouteDocs(query=PauseQuery)),
        action("POST /resume", resume),
        action("POST /reset_prefix_cache", reset_prefix_cache, RouteDocs(query=ResetQuery)),
        action("GET /is_sleeping", is_sleeping),
        action("GET /is_paused", is_paused),
        action("GET /server_info", server_info, RouteDocs(query=InfoQuery)),
        action("POST /reset_mm_cache", reset_media, EMPTY_ANSWER),
        action("POST /reset_encoder_cache", reset_media, EMPTY_ANSWER),
    ]


def profiler(limits: BodyLimits) -> list[Route]:
    def start_profile(context: RequestContext) -> None:
        """Succeeds, if the options of the session are valid."""
        if body := limits.read(context):
            decoding.decode(body, context.content_type, StartProfileRequest)

    def stop_profile(context: RequestContext) -> None:
        """Succeeds."""

    start_docs = RouteDocs(body=(StartProfileRequest,), body_is_optional=True, media=NO_MEDIA)
    return [
        action("POST /start_profile", start_profile, start_docs),
        action("POST /stop_profile", stop_profile, EMPTY_ANSWER),
    ]


def _object(body: BodyLimits, context: RequestContext, error: ApiError) -> JsonObject:
    asked = decoding.read_json(body.read(context))
    if not isinstance(asked, dict):
        raise error
    return asked


def elastic_routes(body: BodyLimits, ranks: int) -> list[Route]:

    def scale_elastic_ep(context: RequestContext) -> object:
        """Succeeds for the present number of ranks; others need vLLM's Ray backend."""
        decoding.check_content_type(context.content_type)
        asked = _object(body, context, internal("The body is no object."))
        for name, default in (("new_data_parallel_size", None), ("drain_timeout", 120)):
            value = asked.get(name, default)
            if not isinstance(value, int) or value <= 0:
                raise malformed(f"{name} must be a positive integer")
        if asked["new_data_parallel_size"] != ranks:
            raise ApiError(500, "Internal Server Error", "Scale failed")
        return {"message": f"Scaled to {ranks} data parallel engines"}

    def is_scaling_elastic_ep(context: RequestContext) -> object:
        """Always false: ranks never come or go."""
        return {"is_scaling_elastic_ep": False}

    scale_docs = RouteDocs(body=(ANY_OBJECT,), example={"new_data_parallel_size": 1})
    return [
        action("POST /scale_elastic_ep", scale_elastic_ep, scale_docs),
        action("POST /is_scaling_elastic_ep", is_scaling_elastic_ep),
    ]


T = TypeVar("T", bound=decoding.Request)
QUIET = (
    "check_health",
    "determine_available_memory",
    "reload_weights",
    "sleep",
    "wake_up",
    "profile",
)
"""Methods of a worker that return nothing and change nothing visible to a client."""


def weight_routes(weights: WeightUpdates, body: BodyLimits, ranks: int) -> list[Route]:

    def read(context: RequestContext, kind: type[T]) -> T:
        return decoding.decode_embedded(body.read(context), context.content_type, kind)

    def step(
        path: str,
        work: Callable[[], None],
        answer: str,
        kind: type[decoding.Request] | None = None,
        docs: RouteDocs = NO_DOCS,
    ) -> Route:

        def handle(context: RequestContext) -> object:
            if kind is not None:
                read(context, kind)
            work()
            return {"message": answer}

        handle.__doc__ = f"A step of an update of weights: {answer.lower()}."
        return action(f"POST /{path}", handle, docs)

    def finish_weight_update(context: RequestContext) -> object:
        """Ends an update; the weights then have a new version, if one is named."""
        weights.finish(read(context, FinishUpdateRequest).weight_version)
        return {"message": "Weight update finished"}

    def update_weight_version(context: RequestContext) -> object:
        """Sets the version of the weights."""
        weights.version = read(context, WeightVersionRequest).new_version
        return {"success": True, "new_version": weights.version}

    def weight_info(context: RequestContext) -> object:
        """The version of the weights."""
        return {"weight_version": weights.version}

    def weight_checker(context: RequestContext) -> object:
        """Digests the weights, compares the digests with a baseline, or zeroes the weights."""
        asked = read(context, WeightCheckRequest)
        if asked.action == "reset":
            weights.reset()
            return {"status": "reset"}
        now, baseline = weights.checksums(), asked.baseline
        if asked.action == "checksum":
            return {"checksums": now}
        if baseline is None:
            raise malformed("action='compare' requires a 'baseline' object")
        others = sorted(
            name for name in now.keys() | baseline.keys() if now.get(name) != baseline.get(name)
        )
        return {"match": not others, "mismatches": others}

    def get_world_size(context: RequestContext) -> object:
        """Devices of all ranks, or of one."""
        asked = decoding.decode_query(context.query(), WorldSizeQuery)
        return {"world_size": weights.devices * (ranks if asked.include_dp else 1)}

    methods: Mapping[str, Callable[[], object]] = {
        **dict.fromkeys(QUIET, lambda: None),
        "reset_weights": weights.reset,
        "start_weight_update": weights.start,
        "shutdown_weight_transfer_engine": weights.disconnect,
        "compute_weight_checksums": weights.checksums,
    }

    def collective_rpc(context: RequestContext) -> object:
        """Calls a method of the workers; the answer has a result for each device."""
        asked = _object(body, context, malformed("the body must be a JSON object"))
        method = asked.get("method")
        if method is None:
            raise malformed("the body has no 'method'")
        if not isinstance(asked.get("args", ()), list | tuple | str | dict):
            raise bad_request("the body's 'args' must be a list")
        if method not in methods:
            raise internal(f"Method {method!r} is not implemented.")
        return {"results": [methods[str(method)]()] * weights.devices}

    connect_docs = RouteDocs(body=(InitTransferRequest,), example={"init_info": {}})
    update_docs = RouteDocs(body=(UpdateWeightsRequest,), example={"update_info": {}})
    finish_docs = RouteDocs(
        body=(FinishUpdateRequest,),
        example={"weight_version": "2"},
        body_is_optional=True,
    )
    version_docs = RouteDocs(body=(WeightVersionRequest,), example={"new_version": "2"})
    check_docs = RouteDocs(body=(WeightCheckRequest,), example={"action": "checksum"})
    call_docs = RouteDocs(body=(ANY_OBJECT,), example={"method": "sleep"})
    return [
        step(
            "init_weight_transfer_engine",
            weights.connect,
            "Weight transfer initialized",
            InitTransferRequest,
            docs=connect_docs,
        ),
        step("shutdown_weight_transfer_engine", weights.disconnect, "Weight transfer shut down"),
        step("start_weight_update", weights.start, "Weight update started"),
        step("start_draft_weight_update", weights.start_draft, "Draft weight update started"),
        step(
            "update_weights",
            weights.update,
            "Weights updated",
            UpdateWeightsRequest,
            docs=update_docs,
        ),
        action("POST /finish_weight_update", finish_weight_update, finish_docs),
        action("POST /update_weight_version", update_weight_version, version_docs),
        action("POST /weight_checker", weight_checker, check_docs),
        action("POST /collective_rpc", collective_rpc, call_docs),
        action("GET /weight_info", weight_info),
        action("GET /get_world_size", get_world_size, RouteDocs(query=WorldSizeQuery)),
    ]
