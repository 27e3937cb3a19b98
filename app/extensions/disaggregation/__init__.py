"""Routes for disaggregated serving: token-level generation, rendering, and KV events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.disaggregation.settings import DisaggregationSettings

if TYPE_CHECKING:
    from app.core.server.http.route import Route


class Disaggregation(Extension):
    """Generation of token ids, rendering and derendering, and where KV events are published."""

    name = "disaggregation"
    Settings = DisaggregationSettings
    requires = ("anthropic", "responses")

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of generation, and the routes that routers read at their start."""
        from app.extensions.disaggregation import routes as generate
        from app.extensions.disaggregation.sources import source_routes

        parts = self.parts
        settings = parts.settings
        section = settings.section(DisaggregationSettings)
        blueprints: dict[str, Sequence[Route]] = {}
        if settings.model.task == "generate":
            blueprints["generate"] = generate.routes(
                parts.pipeline,
                section.enable_scale_out or section.tokens_only,
                parts.weights,
                parts.server.server_dev_mode,
            )
        blueprints["kv_event_sources"] = source_routes(
            parts.kv_events,
            publishes=parts.publisher is not None,
            server=parts.server,
            first_port=settings.server.port,
        )
        return blueprints
