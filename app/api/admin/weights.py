"""The development routes of trainers: weight updates, versions, checksums, calls of the workers' methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from app.engine.weights import Weights
from app.http.body import BodyLimits
from app.http.context import RequestContext
from app.http.errors import bad_request, internal, malformed
from app.http.response import Response, json_response
from app.http.route import Route, get, post
from app.protocol.admin import (
    FinishUpdateRequest,
    InitTransferRequest,
    UpdateWeightsRequest,
    WeightCheckRequest,
    WeightVersionRequest,
    WorldSizeQuery,
)
from app.protocol.coercion import Misfit, convert
from app.protocol.decoding import Request, decode_embedded, read_json

T = TypeVar("T", bound=Request)
QUIET = ("check_health", "determine_available_memory", "reload_weights", "sleep", "wake_up", "profile")
"""Methods of a worker that give nothing back, and whose effect no client sees here."""


def routes(weights: Weights, body: BodyLimits, ranks: int) -> list[Route]:
    """`ranks` is how many there are of the server."""

    def read(context: RequestContext, kind: type[T]) -> T:
        return decode_embedded(body.read(context), context.content_type, kind)

    def init_weight_transfer_engine(context: RequestContext) -> Response:
        """Begin to take weights from a trainer."""
        read(context, InitTransferRequest)
        weights.connect()
        return json_response({"message": "Weight transfer initialized"})

    def shutdown_weight_transfer_engine(context: RequestContext) -> Response:
        """Take no more weights from a trainer."""
        weights.disconnect()
        return json_response({"message": "Weight transfer shut down"})

    def start_weight_update(context: RequestContext) -> Response:
        """Begin an update."""
        weights.start()
        return json_response({"message": "Weight update started"})

    def start_draft_weight_update(context: RequestContext) -> Response:
        """Begin an update of a draft model."""
        weights.start_draft()
        return json_response({"message": "Draft weight update started"})

    def update_weights(context: RequestContext) -> Response:
        """Take weights."""
        read(context, UpdateWeightsRequest)
        weights.update()
        return json_response({"message": "Weights updated"})

    def finish_weight_update(context: RequestContext) -> Response:
        """End an update; the weights have another version then, if one is named."""
        weights.finish(read(context, FinishUpdateRequest).weight_version)
        return json_response({"message": "Weight update finished"})

    def update_weight_version(context: RequestContext) -> Response:
        """Call the weights otherwise."""
        weights.version = read(context, WeightVersionRequest).new_version
        return json_response({"success": True, "new_version": weights.version})

    def weight_info(context: RequestContext) -> Response:
        """The version of the weights."""
        return json_response({"weight_version": weights.version})

    def weight_checker(context: RequestContext) -> Response:
        """Digest the weights, compare their digests with a baseline, or make the weights zero."""
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
        try:
            asked = convert(WorldSizeQuery, context.query())
        except Misfit as misfit:
            raise malformed(f"query.include_dp: expected {misfit.expected}", "query.include_dp") from None
        return json_response({"world_size": weights.devices * (ranks if asked.include_dp else 1)})

    methods: Mapping[str, Callable[[], object]] = {
        **dict.fromkeys(QUIET, lambda: None),
        "reset_weights": weights.reset,
        "start_weight_update": weights.start,
        "shutdown_weight_transfer_engine": weights.disconnect,
        "compute_weight_checksums": weights.checksums,
    }

    def collective_rpc(context: RequestContext) -> Response:
        """What a method of the workers gives back, for each device."""
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
