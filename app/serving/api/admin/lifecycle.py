"""Development routes: sleep, pause, caches, server info, profiler, elastic ranks, weights of trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct

from app.engine.core.lifecycle import Operations, WeightUpdates
from app.engine.core.wire import DEEPEST_SLEEP, PauseMode
from app.serving.api.admin.reports import action
from app.serving.http.body import BodyLimits
from app.serving.http.connection import leaving
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, internal, malformed
from app.serving.http.route import Route
from app.serving.protocol.admin import (
    FinishUpdateRequest,
    InitTransferRequest,
    StartProfileRequest,
    UpdateWeightsRequest,
    WeightCheckRequest,
    WeightVersionRequest,
    WorldSizeQuery,
)
from app.serving.protocol.decoding import (
    Request,
    check_content_type,
    decode,
    decode_embedded,
    decode_query,
    read_json,
)


class SleepQuery(Struct):
    level: Annotated[int, Meta(ge=0, le=DEEPEST_SLEEP)] = 1
    mode: PauseMode = "abort"


class PauseQuery(Struct):
    mode: PauseMode = "abort"
    clear_cache: bool = True


class ResetQuery(Struct):
    """The query of POST /reset_prefix_cache."""

    reset_running_requests: bool = False
    reset_external: bool = False
    """Without effect: no connector keeps blocks beyond the cache."""


class InfoQuery(Struct):
    config_format: Literal["text", "json"] = "text"


def routes(lifecycle: Operations, sleeps: bool, settings: Callable[[], Mapping[str, object]]) -> list[Route]:
    """Returns the routes. `sleeps` is `enable-sleep-mode`; `settings` returns all settings for display."""

    def sleep(context: RequestContext) -> object:
        query = decode_query(context.query(), SleepQuery)
        if sleeps:
            with leaving(context.connection) as left:
                lifecycle.sleep(query.level, query.mode, left)
        return {"status": "sleeping", "level": query.level}

    def release_kv_cache_memory(context: RequestContext) -> object:
        if sleeps:
            lifecycle.release_cache()
        return {"status": "kv_cache_released"}

    def wake_up(context: RequestContext) -> object:
        tags = list(context.arguments("tags")) or None
        return {"status": "awake" if lifecycle.wake_up(tags) else "sleeping", "tags": tags}

    def pause(context: RequestContext) -> object:
        query = decode_query(context.query(), PauseQuery)
        with leaving(context.connection) as left:
            lifecycle.pause(query.mode, left, query.clear_cache)
        return {"status": "paused"}

    def resume(context: RequestContext) -> object:
        lifecycle.resume()
        return {"status": "resumed"}

    def reset_prefix_cache(context: RequestContext) -> object:
        query = decode_query(context.query(), ResetQuery)
        return {"success": lifecycle.reset_prefix_cache(query.reset_running_requests)}

    def server_info(context: RequestContext) -> object:
        query = decode_query(context.query(), InfoQuery)
        settings_now: object = settings()
        if query.config_format == "text":
            settings_now = ", ".join(f"{name}={value!r}" for name, value in settings().items())
        return {"vllm_config": settings_now, "vllm_env": {}, "system_env": {}}

    def is_sleeping(context: RequestContext) -> object:
        return {"is_sleeping": lifecycle.is_sleeping or lifecycle.paused}

    about_sleep = "Puts the model to sleep: level 0 pauses, 1 offloads the weights, 2 discards them."
    about_release = (
        "Frees the memory of the KV cache of a paused server; POST /wake_up?tags=kv_cache takes it back."
    )
    about_pause = "Stops starting requests; `mode` decides about running requests."
    no_cache = "Succeeds: no media are cached here."
    paused = "True while new requests have to wait."
    return [
        action("POST", "/sleep", about_sleep, sleep),
        action("POST", "/release_kv_cache_memory", about_release, release_kv_cache_memory),
        action("POST", "/wake_up", "Wakes the model up, or only the parts that `tags` name.", wake_up),
        action("GET", "/is_sleeping", "True while the model sleeps or is paused.", is_sleeping),
        action("POST", "/pause", about_pause, pause),
        action("POST", "/resume", "Starts requests again.", resume),
        action("GET", "/is_paused", paused, lambda context: {"is_paused": lifecycle.paused}),
        action("POST", "/reset_prefix_cache", "Empties the prefix cache.", reset_prefix_cache),
        action("POST", "/reset_mm_cache", no_cache, lambda context: None),
        action("POST", "/reset_encoder_cache", no_cache, lambda context: None),
        action("GET", "/server_info", "The settings, as text or as JSON.", server_info),
    ]


def profiler(limits: BodyLimits) -> list[Route]:
    """The routes of a profiler that has nothing to profile."""

    def start_profile(context: RequestContext) -> None:
        if body := limits.read(context):
            decode(body, context.content_type, StartProfileRequest)

    about = "Succeeds, if the options of the session are valid."
    return [
        action("POST", "/start_profile", about, start_profile),
        action("POST", "/stop_profile", "Succeeds.", lambda context: None),
    ]


DRAIN_TIMEOUT_S = 120


def elastic_routes(body: BodyLimits, ranks: int) -> list[Route]:

    def scale_elastic_ep(context: RequestContext) -> object:
        check_content_type(context.content_type)
        asked = read_json(body.read(context))
        if not isinstance(asked, dict):
            raise internal("The body is not an object.")
        wanted, timeout = asked.get("new_data_parallel_size"), asked.get("drain_timeout", DRAIN_TIMEOUT_S)
        if wanted is None:
            raise malformed("new_data_parallel_size is required")
        for name, value in (("new_data_parallel_size", wanted), ("drain_timeout", timeout)):
            if not isinstance(value, int) or value <= 0:
                raise malformed(f"{name} must be a positive integer")
        if wanted != ranks:
            raise ApiError(500, "Internal Server Error", "Scale failed")
        return {"message": f"Scaled to {int(wanted)} data parallel engines"}

    about = "Succeeds for the present number of ranks; others need vLLM's Ray backend."
    never = {"is_scaling_elastic_ep": False}
    return [
        action("POST", "/scale_elastic_ep", about, scale_elastic_ep),
        action(
            "POST", "/is_scaling_elastic_ep", "Always false: ranks never come or go.", lambda context: never
        ),
    ]


T = TypeVar("T", bound=Request)
QUIET = ("check_health", "determine_available_memory", "reload_weights", "sleep", "wake_up", "profile")
"""Methods of a worker that return nothing and change nothing visible to a client."""


def weight_routes(weights: WeightUpdates, body: BodyLimits, ranks: int) -> list[Route]:
    """Returns the routes; `ranks` is the server's number of ranks."""

    def read(context: RequestContext, kind: type[T]) -> T:
        return decode_embedded(body.read(context), context.content_type, kind)

    def step(
        path: str, summary: str, answer: str, work: Callable[[], None], kind: type[Request] | None = None
    ) -> Route:
        """Returns the route of one step of an update, whose body is a valid `kind`."""

        def handle(context: RequestContext) -> object:
            if kind is not None:
                read(context, kind)
            work()
            return {"message": answer}

        return action("POST", path, summary, handle)

    def finish_weight_update(context: RequestContext) -> object:
        weights.finish(read(context, FinishUpdateRequest).weight_version)
        return {"message": "Weight update finished"}

    def update_weight_version(context: RequestContext) -> object:
        weights.version = read(context, WeightVersionRequest).new_version
        return {"success": True, "new_version": weights.version}

    def weight_checker(context: RequestContext) -> object:
        asked = read(context, WeightCheckRequest)
        if asked.action == "reset":
            weights.reset()
            return {"status": "reset"}
        now, baseline = weights.checksums(), asked.baseline
        if asked.action == "checksum":
            return {"checksums": now}
        if baseline is None:
            raise malformed("action='compare' requires a 'baseline' object")
        others = sorted(name for name in now.keys() | baseline.keys() if now.get(name) != baseline.get(name))
        return {"match": not others, "mismatches": others}

    def get_world_size(context: RequestContext) -> object:
        asked = decode_query(context.query(), WorldSizeQuery)
        return {"world_size": weights.devices * (ranks if asked.include_dp else 1)}

    methods: Mapping[str, Callable[[], object]] = {
        **dict.fromkeys(QUIET, lambda: None),
        "reset_weights": weights.reset,
        "start_weight_update": weights.start,
        "shutdown_weight_transfer_engine": weights.disconnect,
        "compute_weight_checksums": weights.checksums,
    }

    def collective_rpc(context: RequestContext) -> object:
        asked = read_json(body.read(context))
        if not isinstance(asked, dict):
            raise malformed("the body must be a JSON object")
        method = asked.get("method")
        if method is None:
            raise malformed("the body has no 'method'")
        if not isinstance(asked.get("args", ()), list | tuple | str | dict):
            raise bad_request("the body's 'args' must be a list")
        if method not in methods:
            raise internal(f"Method {method!r} is not implemented.")
        return {"results": [methods[method]()] * weights.devices}

    update, drafts = "Begins an update of the weights.", "Begins an update of a draft model."
    finish = "Ends an update; the weights then have a new version, if one is named."
    check = "Digests the weights, compares the digests with a baseline, or zeroes the weights."
    rpc = "Calls a method of the workers; the answer has a result for each device."
    return [
        step(
            "/init_weight_transfer_engine",
            "Prepares to receive weights from a trainer.",
            "Weight transfer initialized",
            weights.connect,
            InitTransferRequest,
        ),
        step(
            "/shutdown_weight_transfer_engine",
            "Ends the transfer of weights from a trainer.",
            "Weight transfer shut down",
            weights.disconnect,
        ),
        step("/start_weight_update", update, "Weight update started", weights.start),
        step("/start_draft_weight_update", drafts, "Draft weight update started", weights.start_draft),
        step(
            "/update_weights",
            "Receives weights in an update.",
            "Weights updated",
            weights.update,
            UpdateWeightsRequest,
        ),
        action("POST", "/finish_weight_update", finish, finish_weight_update),
        action("POST", "/update_weight_version", "Sets the version of the weights.", update_weight_version),
        action(
            "GET",
            "/weight_info",
            "The version of the weights.",
            lambda context: {"weight_version": weights.version},
        ),
        action("POST", "/weight_checker", check, weight_checker),
        action("GET", "/get_world_size", "Devices of all ranks, or of one.", get_world_size),
        action("POST", "/collective_rpc", rpc, collective_rpc),
    ]
