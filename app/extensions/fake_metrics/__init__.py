"""Fake metrics: configured numbers replace the numbers of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.fake_metrics.settings import FakeMetricsSettings

if TYPE_CHECKING:
    from app.core.base.metrics.instruments import Families
    from app.core.server.http.route import Route


class FakeMetrics(Extension):
    """Shows a router any state: metric families with numbers of the settings or of a request."""

    name = "fake_metrics"
    Settings = FakeMetricsSettings

    def engine_metrics(self, families: Families) -> Families:
        """Returns the fake families while any are set, and `families` otherwise."""
        from app.core.assembly.derived import cache_config
        from app.extensions.fake_metrics.families import FakeFamilies

        parts = self.parts
        settings = parts.settings
        fake_families = FakeFamilies(
            {"model_name": settings.model.served_names[0], "engine": str(parts.rank)},
            settings.model.max_model_len,
            cache_config(settings),
            settings.lora.max_loras,
            clock=parts.clock.now,
        )
        parts.live.subscribe(fake_families.on_settings)

        def render() -> str:
            return fake_families.render() if fake_families.active else families()

        return render

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the route that changes fake metrics."""
        from app.extensions.fake_metrics.routes import fake_metrics_routes

        return {"fake_metrics": fake_metrics_routes(self.parts.body, self.parts.live)}
