"""Goodput of a run, the requests that meet all their limits, and the price of its accelerators.

`vllm bench serve --goodput` has the same limits: milliseconds of `ttft`, `tpot` (time per token
after the first, 0 for a single token) and `e2el` (from sending to the last token).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

from msgspec import Struct

from app.lab.fidelity.simulation import SimulationOutcome
from app.lab.load.loads import LoadTrace
from config import ConfigError

METRICS = ("ttft", "tpot", "e2el")
Limits = Mapping[str, Mapping[str, float]]
"""Class -> metric -> most seconds; the class "" holds for all classes without a limit for that
metric.
"""


class Share(Struct, frozen=True):
    """Requests that met all their limits."""

    requests: int
    good: int
    good_per_s: float

    @property
    def share(self) -> float:
        return self.good / self.requests

    def __str__(self) -> str:
        return f"{self.share:.1%} of requests, {self.good_per_s:.2f}/s"


class Goodput(Share, frozen=True):
    by_class: dict[str, Share] = {}
    """Only of a trace with the column `class`."""


class Price(Struct, frozen=True):
    """Price of a run, in the currency of the price per hour of an accelerator."""

    total: float
    per_million_input_tokens: float
    """If nothing else were paid for; the same holds for output."""
    per_million_output_tokens: float


def read_limits(words: Sequence[str]) -> Limits:
    """Reads words such as `ttft:500` and `chat=tpot:50`. Raises ValueError with the rule."""
    limits: dict[str, dict[str, float]] = defaultdict(dict)
    for word in words:
        name, _, rest = word.rpartition("=")
        metric, _, text = rest.partition(":")
        try:
            milliseconds = float(text)
        except ValueError:
            milliseconds = math.nan
        if metric not in METRICS or not 0 < milliseconds < math.inf or word.startswith("="):
            raise ValueError(
                f"must be [CLASS=]{'|'.join(METRICS)}:MILLISECONDS above 0, not {word[:40]!r}"
            )
        if metric in limits[name]:
            raise ValueError(f"has {metric} twice" + (f" for {name}" if name else ""))
        limits[name][metric] = milliseconds / 1000
    return dict(limits)


def goodput(outcome: SimulationOutcome, limits: Limits, per_s: float) -> Goodput:
    """Counts the requests that met their limits; `per_s` is 1 / duration."""
    load, good = outcome.load, good_requests(outcome, limits)
    its: list[list[bool]] = [[] for _ in load.classes]
    for kind, is_good in zip(load.kind, good, strict=False):
        its[kind].append(is_good)
    shares = (Share(len(own), sum(own), sum(own) * per_s) for own in its)
    by_class = dict(zip(load.classes, shares, strict=True))
    return Goodput(len(good), sum(good), sum(good) * per_s, by_class)


def good_requests(outcome: SimulationOutcome, limits: Limits) -> list[bool]:
    """Returns which requests met all their limits; one without a first token has missed them."""
    return [max(ratios.values(), default=0.0) <= 1 for ratios in limit_ratios(outcome, limits)]


def limits_of(limits: Limits, name: str) -> dict[str, float]:
    """Returns the limits of a class, by metric."""
    return {**limits.get("", {}), **limits.get(name, {})}


def limit_ratios(outcome: SimulationOutcome, limits: Limits) -> Iterator[dict[str, float]]:
    """Yields each request's times by metric, as shares of its limits; inf without a first token."""
    load = outcome.load
    of_class = [limits_of(limits, name) for name in load.classes or [""]]
    columns = (
        outcome.send_s,
        outcome.first_s,
        outcome.last_s,
        load.output_tokens,
        load.kind or repeat(0),
    )
    for send_s, first_s, last_s, output, kind in zip(*columns, strict=False):
        took_s = {
            "ttft": first_s - send_s,
            "tpot": (last_s - first_s) / (output - 1) if output > 1 else 0.0,
            "e2el": last_s - send_s,
        }
        if math.isnan(first_s):
            yield dict.fromkeys(METRICS, math.inf)
        else:
            yield {metric: took_s[metric] / limit_s for metric, limit_s in of_class[kind].items()}


def check_classes(limits: Limits, load: LoadTrace) -> None:
    """Raises ConfigError for limits of a class that the load does not have."""
    if unknown := [name for name in limits if name and name not in load.classes]:
        known = (
            f"; known are {', '.join(load.classes)}" if load.classes else ", and no column class"
        )
        raise ConfigError(f"--goodput: {load.origin} has no requests of class {unknown[0]}{known}")


def lines(its: Goodput, limits: Limits) -> list[str]:
    """Returns one line for each class, and one for all requests."""
    found = []
    for name, share in (its.by_class or {"": its}).items():
        of = f" of {name}" if its.by_class else ""
        told = [
            f"{metric} {1000 * limit_s:g} ms" for metric, limit_s in limits_of(limits, name).items()
        ]
        found.append(f"goodput{of}: {share} ({', '.join(told) or 'no limit'})")
    return [*found, f"goodput: {its}"] if its.by_class else found
