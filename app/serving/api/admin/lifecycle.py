"""Development routes: sleep, pause, caches, server info, profiler, elastic ranks, weights of trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct

from app.engine.core.lifecycle import Operations
from app.engine.core.weights import Weights
from app.engine.core.wire import DEEPEST_SLEEP, PauseMode
from app.serving.http.body import BodyLimits
from app.serving.http.connection import leaving
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, internal, malformed
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, get, post
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


def routes(lifecycle: Operations, sleeps: bool, settings: Callable[[], dict[str, Any]]) -> list[Route]:
    """Returns the routes. `sleeps` is `enable-sleep-mode`; `settings` returns all settings for display."""

    def sleep(context: RequestContext) -> Response:
        """Puts the model to sleep: level 0 pauses, 1 offloads the weights, 2 discards them."""
        query = decode_query(context.query(), SleepQuery)
        if sleeps:
            with leaving(context.connection) as left:
                lifecycle.sleep(query.level, query.mode, left)
        return json_response({"status": "sleeping", "level": query.level})

    def release_kv_cache_memory(context: RequestContext) -> Response:
        """Frees the memory of the KV cache of a paused server; POST /wake_up?tags=kv_cache takes it back."""
        if sleeps:
            lifecycle.release_cache()
        return json_response({"status": "kv_cache_released"})

    def wake_up(context: RequestContext) -> Response:
        """Wakes the model up, or only the parts that `tags` name."""
        tags = list(context.arguments("tags")) or None
        awake = lifecycle.wake_up(tags)
        return json_response({"status": "awake" if awake else "sleeping", "tags": tags})

    def is_sleeping(context: RequestContext) -> Response:
        """True while the model sleeps or is paused."""
        return json_response({"is_sleeping": lifecycle.is_sleeping or lifecycle.paused})

    def pause(context: RequestContext) -> Response:
        """Stops starting requests; `mode` decides about running requests."""
        query = decode_query(context.query(), PauseQuery)
        with leaving(context.connection) as left:
            lifecycle.pause(query.mode, left, query.clear_cache)
        return json_response({"status": "paused"})

    def resume(context: RequestContext) -> Response:
        """Starts requests again."""
        lifecycle.resume()
        return json_response({"status": "resumed"})

    def is_paused(context: RequestContext) -> Response:
        """True while new requests have to wait."""
        return json_response({"is_paused": lifecycle.paused})

    def reset_prefix_cache(context: RequestContext) -> Response:
        """Empties the prefix cache."""
        query = decode_query(context.query(), ResetQuery)
        return json_response({"success": lifecycle.reset_prefix_cache(query.reset_running_requests)})

    def reset_other_cache(context: RequestContext) -> Response:
        """Succeeds: no media are cached here."""
        return Response(b"", 200)

    def server_info(context: RequestContext) -> Response:
        """The settings, as text or as JSON."""
        query = decode_query(context.query(), InfoQuery)
        told: Any = settings()
        if query.config_format == "text":
            told = ", ".join(f"{name}={value!r}" for name, value in told.items())
        return json_response({"vllm_config": told, "vllm_env": {}, "system_env": {}})

    return [
        post("/sleep", sleep),
        post("/release_kv_cache_memory", release_kv_cache_memory),
        post("/wake_up", wake_up),
        get("/is_sleeping", is_sleeping),
        post("/pause", pause),
        post("/resume", resume),
        get("/is_paused", is_paused),
        post("/reset_prefix_cache", reset_prefix_cache),
        post("/reset_mm_cache", reset_other_cache),
        post("/reset_encoder_cache", reset_other_cache),
        get("/server_info", server_info),
    ]


def profiler(limits: BodyLimits) -> list[Route]:
    """The routes of a profiler that has nothing to profile."""

    def start_profile(context: RequestContext) -> Response:
        """Succeeds, if the options of the session are valid."""
        if body := limits.read(context):
            decode(body, context.content_type, StartProfileRequest)
        return Response()

    def stop_profile(context: RequestContext) -> Response:
        """Succeeds."""
        return Response()

    return [post("/start_profile", start_profile), post("/stop_profile", stop_profile)]


DRAIN_TIMEOUT_S = 120


def elastic_routes(body: BodyLimits, ranks: int) -> list[Route]:

    def scale_elastic_ep(context: RequestContext) -> Response:
        """Succeeds for the present number of ranks; others need vLLM's Ray backend."""
        check_content_type(context.content_type)
        asked = read_json(body.read(context))
        if not isinstance(asked, dict):
            raise internal("The body is not an object.")
        wanted = asked.get("new_data_parallel_size")
        if wanted is None:
            raise malformed("new_data_parallel_size is required")
        _check_positive("new_data_parallel_size", wanted)
        _check_positive("drain_timeout", asked.get("drain_timeout", DRAIN_TIMEOUT_S))
        if wanted != ranks:
            raise ApiError(500, "Internal Server Error", "Scale failed")
        return json_response({"message": f"Scaled to {int(wanted)} data parallel engines"})

    def is_scaling_elastic_ep(context: RequestContext) -> Response:
        """Always false: ranks never come or go."""
        return json_response({"is_scaling_elastic_ep": False})

    return [
        post("/scale_elastic_ep", scale_elastic_ep),
        post("/is_scaling_elastic_ep", is_scaling_elastic_ep),
    ]


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or value <= 0:
        raise malformed(f"{name} must be a positive integer")


T = TypeVar("T", bound=Request)
QUIET = ("check_health", "determine_available_memory", "reload_weights", "sleep", "wake_up", "profile")
"""Methods of a worker that return nothing and change nothing visible to a client."""


def weight_routes(weights: Weights, body: BodyLimits, ranks: int) -> list[Route]:
    """Returns the routes; `ranks` is the server's number of ranks."""

    def read(context: RequestContext, kind: type[T]) -> T:
        return decode_embedded(body.read(context), context.content_type, kind)

    def init_weight_transfer_engine(context: RequestContext) -> Response:
        """Prepares to receive weights from a trainer."""
        read(context, InitTransferRequest)
        weights.connect()
        return json_response({"message": "Weight transfer initialized"})

    def shutdown_weight_transfer_engine(context: RequestContext) -> Response:
        """Ends the transfer of weights from a trainer."""
        weights.disconnect()
        return json_response({"message": "Weight transfer shut down"})

    def start_weight_update(context: RequestContext) -> Response:
        """Begins an update of the weights."""
        weights.start()
        return json_response({"message": "Weight update started"})

    def start_draft_weight_update(context: RequestContext) -> Response:
        """Begins an update of a draft model."""
        weights.start_draft()
        return json_response({"message": "Draft weight update started"})

    def update_weights(context: RequestContext) -> Response:
        """Receives weights in an update."""
        read(context, UpdateWeightsRequest)
        weights.update()
        return json_response({"message": "Weights updated"})

    def finish_weight_update(context: RequestContext) -> Response:
        """Ends an update; the weights then have a new version, if one is named."""
        weights.finish(read(context, FinishUpdateRequest).weight_version)
        return json_response({"message": "Weight update finished"})

    def update_weight_version(context: RequestContext) -> Response:
        """Sets the version of the weights."""
        weights.version = read(context, WeightVersionRequest).new_version
        return json_response({"success": True, "new_version": weights.version})

    def weight_info(context: RequestContext) -> Response:
        """The version of the weights."""
        return json_response({"weight_version": weights.version})

    def weight_checker(context: RequestContext) -> Response:
        """Digests the weights, compares the digests with a baseline, or zeroes the weights."""
        asked = read(context, WeightCheckRequest)
        if asked.action == "reset":
            weights.reset()
            return json_response({"status": "reset"})
        if asked.action == "checksum":
            return json_response({"checksums": weights.checksums()})
        if asked.baseline is None:
            raise malformed("action='compare' requires a 'baseline' object")
        return json_response(_compared(weights.checksums(), asked.baseline))

    def get_world_size(context: RequestContext) -> Response:
        """Devices of all ranks, or of one."""
        asked = decode_query(context.query(), WorldSizeQuery)
        return json_response({"world_size": weights.devices * (ranks if asked.include_dp else 1)})

    methods: Mapping[str, Callable[[], object]] = {
        **dict.fromkeys(QUIET, lambda: None),
        "reset_weights": weights.reset,
        "start_weight_update": weights.start,
        "shutdown_weight_transfer_engine": weights.disconnect,
        "compute_weight_checksums": weights.checksums,
    }

    def collective_rpc(context: RequestContext) -> Response:
        """Calls a method of the workers; the answer has a result for each device."""
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
        return json_response({"results": [methods[method]()] * weights.devices})

    return [
        post("/init_weight_transfer_engine", init_weight_transfer_engine),
        post("/shutdown_weight_transfer_engine", shutdown_weight_transfer_engine),
        post("/start_weight_update", start_weight_update),
        post("/start_draft_weight_update", start_draft_weight_update),
        post("/update_weights", update_weights),
        post("/finish_weight_update", finish_weight_update),
        post("/update_weight_version", update_weight_version),
        get("/weight_info", weight_info),
        post("/weight_checker", weight_checker),
        get("/get_world_size", get_world_size),
        post("/collective_rpc", collective_rpc),
    ]


def _compared(now: Mapping[str, str], baseline: Mapping[str, str]) -> dict[str, object]:
    others = sorted(name for name in now.keys() | baseline.keys() if now.get(name) != baseline.get(name))
    return {"match": not others, "mismatches": others}
