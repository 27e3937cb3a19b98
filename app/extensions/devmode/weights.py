"""Routes of a trainer that replaces, versions and compares the weights of the model."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from msgspec import Struct

from app.core.protocol.coercion import JsonObject
from app.core.protocol.decoding import Request, decode_embedded, decode_query, read_json
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, internal, malformed
from app.core.server.http.route import ANY_OBJECT, NO_DOCS, Route, RouteDocs, action
from app.extensions.devmode.weight_updates import WeightUpdates

RequestT = TypeVar("RequestT", bound=Request)

SILENT_METHODS = (
    "check_health",
    "execute_dummy_batch",
    "get_draft_model",
    "reload_weights",
    "reset_encoder_cache",
    "reset_mm_cache",
    "sleep",
    "synchronize_device",
    "take_draft_token_ids",
    "wake_up",
)
"""Methods of a worker that return nothing and change nothing visible to a client."""
WORKER_RESULTS: Mapping[str, object] = {
    "compile_or_warm_up_model": [0.0, 0.0],
    "determine_available_memory": str(4 << 30),
    "get_compilation_match_table": {},
    "get_encoder_timing_stats": {},
    "supports_draft_weight_updates": str(False),
}
"""Constant results by method.

Lists, objects and null stay JSON; any other result is sent as text.
"""


class WorldSizeQuery(Struct):
    """The query of ``GET /get_world_size``."""

    include_dp: bool = True


class InitTransferRequest(Request, kw_only=True):
    """The body of ``POST /init_weight_transfer_engine``."""

    init_info: JsonObject


class UpdateWeightsRequest(Request, kw_only=True):
    """The body of ``POST /update_weights``; a list has one object per device."""

    update_info: JsonObject | list[JsonObject]


class FinishUpdateRequest(Request, kw_only=True):
    """The body of ``POST /finish_weight_update``."""

    weight_version: str | None = None


class WeightVersionRequest(Request, kw_only=True):
    """The body of ``POST /update_weight_version``."""

    new_version: str


class WeightCheckRequest(Request, kw_only=True):
    """The body of ``POST /weight_checker``; "compare" needs a `baseline`."""

    action: Literal["checksum", "reset", "compare"]
    baseline: dict[str, str] | None = None


class WeightHandlers:
    """Handlers of the routes that change and compare the weights."""

    def __init__(
        self,
        updates: WeightUpdates,
        body_limits: BodyLimits,
        rank_count: int,
        worker_results: Mapping[str, object],
        has_several_engines: bool,
    ) -> None:
        """`worker_results` are results of the workers' methods that depend on the settings.

        `has_several_engines` is true for a server with several ranks behind one port.
        """
        self._updates = updates
        self._body_limits = body_limits
        self._rank_count = rank_count
        self._has_several_engines = has_several_engines
        self._worker_results = {
            **dict.fromkeys(SILENT_METHODS),
            **WORKER_RESULTS,
            **worker_results,
        }
        self._worker_methods: Mapping[str, Callable[[], object]] = {
            "reset_weights": updates.reset,
            "start_weight_update": updates.start,
            "shutdown_weight_transfer_engine": updates.disconnect,
            "compute_weight_checksums": updates.checksums,
        }

    def step_route(
        self,
        path: str,
        run: Callable[[], None],
        message: str,
        docs: RouteDocs = NO_DOCS,
    ) -> Route:
        """Returns a route for a step of an update; `run` does the step."""

        def handle(context: RequestContext) -> object:
            for body_type in docs.body:
                self._read(context, body_type)
            run()
            return {"message": message}

        handle.__doc__ = f"A step of an update of weights: {message.lower()}."
        return action(f"POST /{path}", handle, docs)

    def finish(self, context: RequestContext) -> object:
        """Ends an update; the weights then have a new version, if one is named."""
        self._updates.finish(self._read(context, FinishUpdateRequest).weight_version)
        return {"message": "Weight update finished"}

    def set_version(self, context: RequestContext) -> object:
        """Sets the version of the weights."""
        self._updates.weights.version = self._read(context, WeightVersionRequest).new_version
        return {"success": True, "new_version": self._updates.weights.version}

    def version(self, context: RequestContext) -> object:
        """The version of the weights."""
        return {"weight_version": self._updates.weights.version}

    def check(self, context: RequestContext) -> object:
        """Digests the weights, compares the digests with a baseline, or zeroes the weights."""
        request = self._read(context, WeightCheckRequest)
        if request.action == "reset":
            self._updates.reset()
            return {"status": "reset"}
        checksums = self._updates.checksums()
        if request.action == "checksum":
            return {"checksums": checksums}
        baseline = request.baseline
        if baseline is None:
            raise malformed("action='compare' requires a 'baseline' object")
        mismatches = []
        for name in sorted(checksums.keys() | baseline.keys()):
            if checksums.get(name) != baseline.get(name):
                mismatches.append(name)
        return {"match": not mismatches, "mismatches": mismatches}

    def world_size(self, context: RequestContext) -> object:
        """Devices of all ranks, or of one."""
        device_count = self._updates.devices
        if decode_query(context.query(), WorldSizeQuery).include_dp:
            device_count *= self._rank_count
        return {"world_size": device_count}

    def call_workers(self, context: RequestContext) -> object:
        """Calls a method of the workers; the answer has a result for each device."""
        body = read_json(self._body_limits.read(context))
        if not isinstance(body, dict):
            raise malformed("Request body must be a JSON object")
        method = body.get("method")
        if method is None:
            raise malformed("the body must have a 'method'")
        if not isinstance(body.get("args", ()), list | tuple | str | dict):
            raise bad_request("the body's 'args' must be a list")
        if not isinstance(method, str):
            raise internal(f"Method {method!r} is not implemented.")
        if method in self._worker_results:
            result = self._worker_results[method]
        elif method in self._worker_methods:
            result = self._worker_methods[method]()
        else:
            raise internal(f"Method {method!r} is not implemented.")
        results = [result] * self._updates.devices
        if self._has_several_engines:  # seen on vLLM 0.32 with two ranks
            results.append(None)
        return {"results": results}

    def _read(self, context: RequestContext, body_type: type[RequestT]) -> RequestT:
        return decode_embedded(self._body_limits.read(context), context.content_type, body_type)


def weight_routes(
    updates: WeightUpdates,
    body_limits: BodyLimits,
    rank_count: int,
    worker_results: Mapping[str, object],
    has_several_engines: bool = False,
) -> list[Route]:
    """Returns the routes of `WeightHandlers`."""
    handlers = WeightHandlers(
        updates,
        body_limits,
        rank_count=rank_count,
        worker_results=worker_results,
        has_several_engines=has_several_engines,
    )
    finish_docs = RouteDocs(
        body=(FinishUpdateRequest,), example={"weight_version": "2"}, body_is_optional=True
    )
    version_docs = RouteDocs(body=(WeightVersionRequest,), example={"new_version": "2"})
    check_docs = RouteDocs(body=(WeightCheckRequest,), example={"action": "checksum"})
    call_docs = RouteDocs(body=(ANY_OBJECT,), example={"method": "sleep"})
    return [
        handlers.step_route(
            "init_weight_transfer_engine",
            updates.connect,
            "Weight transfer initialized",
            RouteDocs(body=(InitTransferRequest,), example={"init_info": {}}),
        ),
        handlers.step_route(
            "shutdown_weight_transfer_engine", updates.disconnect, "Weight transfer shut down"
        ),
        handlers.step_route("start_weight_update", updates.start, "Weight update started"),
        handlers.step_route(
            "start_draft_weight_update", updates.start_draft, "Draft weight update started"
        ),
        handlers.step_route(
            "update_weights",
            updates.update,
            "Weights updated",
            RouteDocs(body=(UpdateWeightsRequest,), example={"update_info": {}}),
        ),
        action("POST /finish_weight_update", handlers.finish, finish_docs),
        action("POST /update_weight_version", handlers.set_version, version_docs),
        action("POST /weight_checker", handlers.check, check_docs),
        action("POST /collective_rpc", handlers.call_workers, call_docs),
        action("GET /weight_info", handlers.version),
        action("GET /get_world_size", handlers.world_size, RouteDocs(query=WorldSizeQuery)),
    ]
