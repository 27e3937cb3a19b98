"""What the metrics say."""

from dataclasses import dataclass

from config.fake_metrics import parse
from config.fields import setting
from config.kinds import Duration, Json
from config.rules import positive, understood_by


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What the metrics say."""

    fake_metrics: Json = setting(
        None,
        live=True,
        help="JSON object of metrics that are told instead of the true ones; see docs/metrics.md.",
        rule=understood_by(parse, "must have only keys and values that are described there"),
    )
    fake_metrics_refresh_interval: Duration = setting(
        0.1,
        help="Time for which fake metrics that are functions of time keep a value.",
        rule=positive(),
    )
