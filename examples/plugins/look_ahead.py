"""An autoscaling policy that expects the load at the time when a new pod will be ready.

understudy simulate --plugin examples/plugins/look_ahead.py --autoscale look-ahead:min=1,max=8
    --cold-start 60s --rate 40 --arrivals ramp --seconds 600
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Annotated

from app.plugins import About, AutoscalerStart, Count, Decide, Duration, Look, Plugin, Section

API = 2
VERSION = "1.0"


class TrendSettings(Section, frozen=True, kw_only=True):
    """Autoscaling by the trend of running requests."""

    target: Annotated[Count, About("Running requests of a pod.")] = 30
    ahead: Annotated[Duration, About("Time by which the trend is extrapolated.")] = 60.0


class Trend:
    """The trend of running requests over the last five looks of one run."""

    def __init__(self, settings: TrendSettings) -> None:
        self._settings = settings
        self._looks: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=5)

    def pods(self, look: Look) -> int:
        """Returns the number of pods for the expected requests."""
        if not look.samples:
            return look.pods
        running = sum(sample["running"] for sample in look.samples)
        first_s, first_running = self._looks[0]
        self._looks.append((look.at_s, running))
        growth_per_s = max(0.0, running - first_running) / max(look.at_s - first_s, 1.0)
        expected: float = running + growth_per_s * self._settings.ahead
        return math.ceil(expected / self._settings.target)


class LookAhead(Plugin):
    """Adds the autoscaling policy `look-ahead`."""

    name = "look-ahead"
    Settings = TrendSettings

    def autoscalers(self) -> Mapping[str, AutoscalerStart]:
        """Returns the policy."""
        return {"look-ahead": self._start}

    def _start(self, pods: int) -> Decide:
        return Trend(self.settings).pods


EXTENSION = LookAhead
