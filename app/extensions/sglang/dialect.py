"""The parts that the SGLang dialect adds to a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from app.core.extensions import Extension, Position
from app.core.server.http.late_routes import late_routes
from app.extensions.sglang.kv_events import encode_batch
from app.extensions.sglang.loads import LoadReader
from app.extensions.sglang.metrics import LoadMetrics, RequestCounts, RequestMetrics, server_labels
from app.extensions.sglang.openai_forms import OpenAiForms, StopNames
from app.extensions.sglang.ranks import DataParallelRanks

if TYPE_CHECKING:
    from app.core.base.metrics.instruments import Families
    from app.core.extensions import ServerParts
    from app.core.server.http.route import Route
    from app.core.server.middleware.stack import Middleware

INFORMATION = (
    "GET /model_info",
    "GET /get_model_info",
    "GET /server_info",
    "GET /get_server_info",
    "GET /get_load",
    "GET /v1/loads",
    "GET /health_generate",
    "GET,POST /flush_cache",
)
GENERATION = ("POST,PUT /generate", "POST /abort_request")
GUARDED = (
    *("/generate", "/abort_request", "/flush_cache", "/get_load"),
    *("/model_info", "/get_model_info", "/server_info", "/get_server_info"),
)
"""Native paths that need an API key, if any is set. Only the health check needs none."""


class Dialect(Extension):
    """Adds SGLang's native interface, and adapts the OpenAI routes."""

    name = "sglang"

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        parts.keys.guard(GUARDED)
        if parts.kv_events.layout == "map":
            parts.kv_events = replace(parts.kv_events, encode=encode_batch)

    @cached_property
    def _loads(self) -> LoadReader:
        return LoadReader(self.parts)

    @cached_property
    def _request_metrics(self) -> RequestMetrics:
        return RequestMetrics(server_labels(self.parts))

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the middleware that observes requests, and around the OpenAI routes."""
        pipeline = self.parts.pipeline
        forms = OpenAiForms(StopNames(pipeline.tokenizer.eos_token_id), pipeline.weights)
        return {
            Position.AUTHENTICATED: [RequestCounts(self._request_metrics)],
            Position.INNERMOST: [forms, DataParallelRanks(self.parts.body)],
        }

    def metrics(self) -> Sequence[Families]:
        """Returns SGLang's families; none with disable-log-stats, as vLLM has none then."""
        if self.parts.settings.metrics.disable_log_stats:
            return ()
        loads = LoadMetrics(self.parts, self._loads, server_labels(self.parts))
        return (loads.render, self._request_metrics.render)

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns SGLang's native routes; a model that embeds has no generation."""
        routes = {"sglang": late_routes(self._load_information, *INFORMATION)}
        if self.parts.settings.model.task == "generate":
            routes["sglang_generate"] = late_routes(self._load_generation, *GENERATION)
        return routes

    def _load_generation(self) -> list[Route]:
        from app.extensions.sglang.generate import generate_routes

        return generate_routes(self.parts.pipeline)

    def _load_information(self) -> list[Route]:
        from app.extensions.sglang.information import information_routes

        return information_routes(self.parts, self._loads)
