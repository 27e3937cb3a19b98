"""Routes of vLLM for developers and trainers.

The routes control sleep, pause, caches, weights, the profiler and elastic ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, late_routes
from app.extensions.devmode.settings import DevelopmentSettings

if TYPE_CHECKING:
    from app.core.server.http.route import Route
    from app.extensions.devmode.weight_updates import WeightUpdates

CHOKE = ("GET /admin/choke", "POST /admin/choke", "DELETE /admin/choke")
ELASTIC = ("POST /scale_elastic_ep", "POST /is_scaling_elastic_ep")


class DevelopmentRoutes(Extension):
    """Adds the routes that the settings enable."""

    name = "devmode"
    Settings = DevelopmentSettings

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes by the name of their group."""
        parts = self.parts
        body = parts.pipeline.body
        routes: dict[str, Sequence[Route]] = {"choke": late_routes(self._load_choke, *CHOKE)}
        if parts.settings.model.task == "generate":
            routes["elastic"] = late_routes(self._load_elastic, *ELASTIC)
        if parts.server.server_dev_mode:
            from app.extensions.devmode.engine_actions import ActionRules
            from app.extensions.devmode.lifecycle import lifecycle_routes
            from app.extensions.devmode.weights import weight_routes

            routes["lifecycle"] = lifecycle_routes(
                parts.lifecycle,
                sleep_enabled=parts.settings.section(DevelopmentSettings).enable_sleep_mode,
                settings=self._shown_settings,
                media=parts.pipeline.media,
                rules=parts.pipeline.version.rules(ActionRules),
            )
            routes["weights"] = weight_routes(
                self._weight_updates(),
                body,
                rank_count=parts.server.data_parallel_size,
                worker_results=self._worker_results(),
                has_several_engines=len(parts.server.engine_ranks) > len(parts.server.ranks),
            )
        if parts.server.profiling:
            from app.extensions.devmode.profiler import profiler_routes

            routes["profiler"] = profiler_routes(body, parts.pipeline.version)
        return routes

    def _load_choke(self) -> list[Route]:
        from app.extensions.devmode.choking import Choke, choke_routes

        parts = self.parts
        return choke_routes(Choke(parts.engine, parts.lifecycle), parts.body, parts.peers)

    def _load_elastic(self) -> list[Route]:
        from app.extensions.devmode.elastic import elastic_routes

        parts = self.parts
        return elastic_routes(
            parts.body,
            parts.server.data_parallel_size,
            shape=parts.pipeline.version.shape,
        )

    def _weight_updates(self) -> WeightUpdates:
        from app.extensions.devmode.weight_updates import WeightUpdates

        settings = self.parts.settings
        return WeightUpdates(
            self.parts.weights,
            settings.model.model,
            devices=settings.model.tensor_parallel_size,
            transfers=settings.server.weight_transfer and not settings.engine.is_real,
        )

    def _worker_results(self) -> Mapping[str, object]:
        """Returns results of the workers' methods that depend on the settings."""
        results: dict[str, object] = {"get_supported_tasks": [self.parts.settings.model.task]}
        if self.parts.server.profiling:
            results["profile"] = None
        return results

    def _shown_settings(self) -> Mapping[str, object]:
        return self.parts.live.current.dump()
