"""Goodput of a run, the requests that meet all their limits, and the price of its accelerators.

`vllm bench serve --goodput` has the same limits: milliseconds of `ttft`, `tpot` (time per token after the
first, 0 for a single token) and `e2el` (from sending to the last token).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from app.lab.fidelity.simulation import SimulationOutcome
from app.lab.load.loads import LoadTrace
from config import ConfigError

METRICS = ("ttft", "tpot", "e2el")
Limits = Mapping[str, Mapping[str, float]]
"""Class -> metric -> most seconds; the class "" holds for all classes without a limit for that metric."""


class Share(Struct, frozen=True):
    """Requests that met all their limits."""

    requests: int
    good: int
    good_per_s: float


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
        if metric not in METRICS or not 0 < milliseconds < math.inf:
            raise ValueError(f"must be [CLASS=]{'|'.join(METRICS)}:MILLISECONDS above 0, not {word[:40]!r}")
        if metric in limits[name]:
            raise ValueError(f"has {metric} twice" + (f" for {name}" if name else ""))
        limits[name][metric] = milliseconds / 1000
    return dict(limits)


def goodput(load: LoadTrace, outcome: SimulationOutcome, limits: Limits, duration_s: float) -> Goodput:
    """Counts the requests that met their limits; one without a first token has missed them."""
    kinds = load.kind or None
    good: dict[int, int] = defaultdict(int)
    count: dict[int, int] = defaultdict(int)
    for number, ratios in enumerate(limit_ratios(load, outcome, limits)):
        kind = -1 if kinds is None else kinds[number]
        count[kind] += 1
        good[kind] += all(ratio <= 1 for ratio in ratios.values())
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    shares = {kind: Share(count[kind], good[kind], good[kind] * per_s) for kind in sorted(count)}
    met = sum(good.values())
    return Goodput(
        len(load), met, met * per_s, {load.classes[kind]: it for kind, it in shares.items() if kind >= 0}
    )


def limit_ratios(load: LoadTrace, outcome: SimulationOutcome, limits: Limits) -> Iterator[dict[str, float]]:
    """Yields each request's times by metric, as shares of its limits; inf without a first token."""
    everyone, kinds = limits.get("", {}), load.kind or None
    of_class = [{**everyone, **limits.get(name, {})} for name in load.classes]
    for number, output in enumerate(load.output_tokens):
        send_s, first_s, last_s = outcome.send_s[number], outcome.first_s[number], outcome.last_s[number]
        took_s = {
            "ttft": first_s - send_s,
            "tpot": (last_s - first_s) / (output - 1) if output > 1 else 0.0,
            "e2el": last_s - send_s,
        }
        own = everyone if kinds is None else of_class[kinds[number]]
        if math.isnan(first_s):
            yield dict.fromkeys(METRICS, math.inf)
        else:
            yield {metric: took_s[metric] / limit_s for metric, limit_s in own.items()}


def check_classes(limits: Limits, load: LoadTrace) -> None:
    """Raises ConfigError for limits of a class that the load does not have."""
    if unknown := [name for name in limits if name and name not in load.classes]:
        known = f"; known are {', '.join(load.classes)}" if load.classes else ", and no column class"
        raise ConfigError(f"--goodput: {load.origin} has no requests of class {unknown[0]}{known}")


def price_of(gpu_hours: float, per_hour: float, input_tokens: int, output_tokens: int) -> Price:
    total = gpu_hours * per_hour
    return Price(total, total / input_tokens * 1e6, total / output_tokens * 1e6)


def lines(its: Goodput, limits: Limits) -> list[str]:
    """Returns one line for all requests, and one for each class."""

    def line(name: str, share: Share, own: Mapping[str, float]) -> str:
        told = ", ".join(f"{metric} {1000 * seconds:g} ms" for metric, seconds in own.items()) or "no limit"
        return f"{name}: {share.good / share.requests:.1%} of requests, {share.good_per_s:.2f}/s ({told})"

    general = limits.get("", {})
    found = [line("goodput", its, general)] if not its.by_class else []
    for name, share in its.by_class.items():
        found.append(line(f"goodput of {name}", share, {**general, **limits.get(name, {})}))
    if its.by_class:
        found.append(f"goodput: {its.good / its.requests:.1%} of requests, {its.good_per_s:.2f}/s")
    return found
