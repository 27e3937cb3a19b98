"""Routes for disaggregated serving: token-level generation, rendering, and KV events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.base.late_imports import import_modules
from app.core.extensions import Extension, late_routes
from app.extensions.scale_out.settings import ScaleOutSettings

if TYPE_CHECKING:
    from app.core.server.http.route import Route

GENERATE = (
    "POST /inference/v1/generate",
    "POST /v1/chat/completions/render",
    "POST /v1/messages/render",
    "POST /v1/completions/render",
    "POST /v1/responses/render",
    "POST /v1/chat/completions/derender",
    "POST /v1/completions/derender",
)
MODULES = (
    "app.extensions.scale_out.derender",
    "app.core.api.chat.tools",
    "app.extensions.anthropic.protocol",
    "app.extensions.anthropic.routes",
    "app.extensions.responses.protocol",
    "app.extensions.responses.chat",
    "app.extensions.responses.writer",
    "app.extensions.responses.routes",
    "app.extensions.scale_out.render",
    "app.extensions.scale_out.routes",
)
"""Modules of these routes, in the order of their imports: together they take 70 ms."""
ABORT = "POST /abort_requests"
ABORT_NAMED = "POST /inference/v1/abort_requests"
SOURCES = ("GET /kv_event_sources", "GET /query")


class ScaleOut(Extension):
    """Generation of token ids, rendering and derendering, and where KV events are published."""

    name = "scale_out"
    Settings = ScaleOutSettings
    requires = ("anthropic", "responses", "tool_calls")

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of generation, and the routes that routers read at their start."""
        blueprints: dict[str, Sequence[Route]] = {}
        if self.parts.settings.model.task == "generate":
            operations = [*GENERATE, ABORT_NAMED]
            if self._aborts_openly:
                operations.insert(len(GENERATE), ABORT)
            blueprints["generate"] = late_routes(self._load_generate, *operations)
        blueprints["kv_event_sources"] = late_routes(self._load_sources, *SOURCES)
        return blueprints

    @property
    def _scales_out(self) -> bool:
        section = self.parts.settings.section(ScaleOutSettings)
        if section.enable_scale_out or section.tokens_only:
            return True
        from app.extensions.scale_out.rules import rules_of

        return not rules_of(self.parts.pipeline).is_gated

    @property
    def _aborts_openly(self) -> bool:
        """True if POST /abort_requests is served, which needs no API key."""
        section = self.parts.settings.section(ScaleOutSettings)
        if section.tokens_only or not self.parts.server.server_dev_mode:
            return section.tokens_only
        from app.extensions.scale_out.rules import rules_of

        return rules_of(self.parts.pipeline).aborts_in_dev_mode

    def _load_generate(self) -> list[Route]:
        import_modules(*MODULES)
        from app.extensions.scale_out.routes import routes

        parts = self.parts
        return routes(parts.pipeline, self._scales_out, parts.weights, self._aborts_openly)

    def _load_sources(self) -> list[Route]:
        from app.extensions.scale_out.sources import source_routes

        parts = self.parts
        has_endpoint = bool(parts.kv_events.endpoint or parts.kv_events.replay_endpoint)
        has_cache = not parts.settings.model.mm_encoder_only
        return source_routes(
            parts.kv_events,
            publishes=has_endpoint and has_cache and parts.settings.kvcache.enable_kvcache,
            server=parts.server,
            first_port=parts.settings.server.port,
        )
