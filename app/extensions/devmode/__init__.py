"""Routes of vLLM for developers and trainers.

The routes control sleep, pause, caches, weights, the profiler and elastic ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.devmode.settings import DevelopmentSettings

if TYPE_CHECKING:
    from app.core.server.http.route import Route


class DevelopmentRoutes(Extension):
    """Adds the routes that the settings enable."""

    name = "devmode"
    Settings = DevelopmentSettings

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes by the name of their group."""
        from app.extensions.devmode.elastic import elastic_routes
        from app.extensions.devmode.lifecycle import lifecycle_routes
        from app.extensions.devmode.profiler import profiler_routes
        from app.extensions.devmode.weights import weight_routes

        parts = self.parts
        body = parts.pipeline.body
        rank_count = parts.server.data_parallel_size
        routes: dict[str, Sequence[Route]] = {}
        if parts.settings.model.task == "generate":
            routes["elastic"] = elastic_routes(body, rank_count)
        if parts.server.server_dev_mode:
            routes["lifecycle"] = lifecycle_routes(
                parts.lifecycle,
                sleep_enabled=parts.settings.section(DevelopmentSettings).enable_sleep_mode,
                settings=self._shown_settings,
            )
            routes["weights"] = weight_routes(parts.weights, body, rank_count)
        if parts.server.profiling:
            routes["profiler"] = profiler_routes(body)
        return routes

    def _shown_settings(self) -> Mapping[str, object]:
        return self.parts.live.current.dump()
