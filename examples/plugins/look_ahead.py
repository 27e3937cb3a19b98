"""An autoscaling policy: it counts on the requests that will run when a pod that starts now is
ready.

python -m app simulate --plugin examples/plugins/look_ahead.py --autoscale look-ahead:min=1,max=8
    --cold-start 60s --rate 40 --arrivals ramp --seconds 600
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Annotated

from app.plugins import (
    About,
    AutoscalerStart,
    Count,
    Decide,
    Duration,
    Look,
    PluginHost,
    Section,
    hookimpl,
)

API = 1
VERSION = "1.0"


class Settings(Section, frozen=True, kw_only=True):
    """Autoscaling by the trend of running requests."""

    target: Annotated[Count, About("Running requests of a pod.")] = 30
    ahead: Annotated[Duration, About("How far the trend is followed.")] = 60.0


@hookimpl
def autoscaling(host: PluginHost) -> Mapping[str, AutoscalerStart]:
    def start(pods: int) -> Decide:
        seen: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=5)

        def decide(look: Look) -> int:
            if not look.samples:
                return look.pods
            running = sum(sample["running"] for sample in look.samples)
            (first_s, first), its = seen[0], host.settings
            seen.append((look.at_s, running))
            trend = max(0.0, running - first) / max(look.at_s - first_s, 1.0)
            wanted: float = (running + trend * its.ahead) / its.target
            return math.ceil(wanted)

        return decide

    return {"look-ahead": start}
