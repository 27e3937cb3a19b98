"""What the metrics say."""

from dataclasses import dataclass

from config.fields import setting
from config.kinds import Duration, Json
from config.rules import positive


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What the metrics say."""

    fake_metrics: Json = setting(
        None,
        live=True,
        help="JSON object of metrics that are told instead of the true ones; see docs/metrics.md.",
    )
    fake_metrics_refresh_interval: Duration = setting(
        0.1, help="How often fake metrics that are functions of time are computed.", rule=positive()
    )
