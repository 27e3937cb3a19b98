"""Settings of fake metrics."""

from typing import Annotated

from app.extensions.fake_metrics.document import merged, parse
from config.declaration import About, Json, PositiveDuration, Section, understood_by


class FakeMetricsSettings(Section, frozen=True, kw_only=True):
    """Metrics with configured values."""

    fake_metrics: Annotated[
        Json | None,
        About(live=True, simulated=True, merge=merged),
        understood_by(parse, "must have only keys and values that docs/metrics.md describes"),
    ] = None
    """JSON object of metrics that replace the real ones; see docs/metrics.md."""
    fake_metrics_refresh_interval: PositiveDuration = 0.1
    """Time between updates of fake metrics that are functions of time."""
