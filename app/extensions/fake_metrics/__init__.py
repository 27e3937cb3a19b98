"""Fake metrics: configured numbers replace the numbers of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension, late_routes
from app.extensions.fake_metrics.settings import FakeMetricsSettings

if TYPE_CHECKING:
    from app.core.base.metrics.instruments import Families
    from app.core.server.http.route import Route
    from app.extensions.fake_metrics.families import FakeFamilies
    from config import Settings as AllSettings


class FakeMetrics(Extension):
    """Shows a router any state: metric families with numbers of the settings or of a request."""

    name = "fake_metrics"
    Settings = FakeMetricsSettings

    def engine_metrics(self, families: Families) -> Families:
        """Returns the fake families while any are set, and `families` otherwise."""
        self.parts.live.subscribe(self._on_settings)

        def render() -> str:
            if self._is_used and self._fake_families.active:
                return self._fake_families.render()
            return families()

        return render

    @cached_property
    def _fake_families(self) -> FakeFamilies:
        from app.core.assembly.derived import cache_config
        from app.extensions.fake_metrics.families import FakeFamilies

        settings = self.parts.settings
        return FakeFamilies(
            {"model_name": settings.model.served_names[0], "engine": str(self.parts.rank)},
            settings.model.max_model_len,
            cache_config(settings.kvcache, settings.model, settings.api),
            settings.lora.max_loras,
            clock=self.parts.clock.now,
        )

    @property
    def _is_used(self) -> bool:
        return "_fake_families" in vars(self)

    def _on_settings(self, settings: AllSettings) -> None:
        if self._is_used or settings.section(FakeMetricsSettings).fake_metrics is not None:
            self._fake_families.on_settings(settings)

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the route that changes fake metrics."""
        return {"fake_metrics": late_routes(self._load, "POST /fake_metrics")}

    def _load(self) -> list[Route]:
        from app.extensions.fake_metrics.routes import fake_metrics_routes

        return fake_metrics_routes(self.parts.body, self.parts.live)
