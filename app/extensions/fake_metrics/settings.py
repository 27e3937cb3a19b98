"""Settings of fake metrics. Few servers have them, so their document is imported late."""

from typing import Annotated

from config.declaration import About, Json, PositiveDuration, Section, understood_by


def check_fake_metrics(text: str | None) -> None:
    """Raises ValueError for metrics that cannot be read."""
    if text is not None:
        from app.extensions.fake_metrics.document import parse

        parse(text)


def merge_fake_metrics(current: str | None, changes: object) -> object:
    """Returns the current metrics with `changes` of single keys.

    Raises:
        ValueError: A change is wrong.
    """
    from app.extensions.fake_metrics.document import merged

    return merged(current, changes)


class FakeMetricsSettings(Section, frozen=True, kw_only=True):
    """Metrics with configured values."""

    fake_metrics: Annotated[
        Json | None,
        About(live=True, simulated=True, merge=merge_fake_metrics),
        understood_by(
            check_fake_metrics, "must contain only the keys and values of docs/metrics.md"
        ),
    ] = None
    """JSON object with metrics that replace the real metrics. See docs/metrics.md."""
    fake_metrics_refresh_interval: PositiveDuration = 0.1
    """Time between updates of fake metrics that are functions of time."""
