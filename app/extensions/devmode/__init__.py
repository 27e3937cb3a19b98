"""vLLM's routes for developers and trainers:

sleep, pause, caches, weights, the profiler, elastic ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.core.server.http.route import Route


class DevelopmentRoutes(Extension):
    name = "devmode"

    def routes(self) -> Mapping[str, Sequence[Route]]:
        from app.extensions.devmode import routes as development

        parts = self.parts
        body = parts.pipeline.body
        rank_count = parts.server.data_parallel_size
        blueprints: dict[str, Sequence[Route]] = {}
        if parts.settings.model.task == "generate":
            blueprints["elastic"] = development.elastic_routes(body, rank_count)
        if parts.server.server_dev_mode:
            blueprints["lifecycle"] = development.routes(
                parts.lifecycle,
                sleeps=parts.settings.api.enable_sleep_mode,
                settings=self._shown_settings,
            )
            blueprints["weights"] = development.weight_routes(parts.weights, body, rank_count)
        if parts.server.profiling:
            blueprints["profiler"] = development.profiler(body)
        return blueprints

    def _shown_settings(self) -> Mapping[str, object]:
        return self.parts.live.current.dump()


EXTENSION = DevelopmentRoutes
