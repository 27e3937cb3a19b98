"""Goodput of a run, the requests that meet all their limits, and the price of its accelerators.

`vllm bench serve --goodput` has the same limits: milliseconds of `ttft`, `tpot` (time per token
after the first, 0 for a single token) and `e2el` (from sending to the last token).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, repeat

from msgspec import Struct

from config import ConfigError
from workbench.load.loads import LoadTrace
from workbench.runs.simulation import SimulationOutcome

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
        """Share of the requests, from 0 to 1."""
        return self.good / self.requests

    def __str__(self) -> str:
        return f"{self.share:.1%} of requests, {self.good_per_s:.2f}/s"


class Goodput(Share, frozen=True):
    """Requests of a run that met all their limits."""

    by_class: dict[str, Share] = {}
    """Only of a trace with the column `class`."""


class Price(Struct, frozen=True):
    """Price of a run, in the currency of the price per hour of an accelerator."""

    total: float
    per_million_input_tokens: float
    """The whole price, divided by input tokens only; the same holds for output."""
    per_million_output_tokens: float


def read_limits(words: Sequence[str]) -> Limits:
    """Reads words such as `ttft:500` and `chat=tpot:50`. Raises ValueError with the rule."""
    limits: dict[str, dict[str, float]] = defaultdict(dict)
    for word in words:
        class_name, _, limit = word.rpartition("=")
        metric, _, text = limit.partition(":")
        try:
            milliseconds = float(text)
        except ValueError:
            milliseconds = math.nan
        if metric not in METRICS or not 0 < milliseconds < math.inf or word.startswith("="):
            raise ValueError(
                f"must be [CLASS=]{'|'.join(METRICS)}:MILLISECONDS with MILLISECONDS"
                f" greater than 0, not {word[:40]!r}"
            )
        if metric in limits[class_name]:
            raise ValueError(
                f"must not have two limits for {metric}"
                + (f" in class {class_name}" if class_name else "")
            )
        limits[class_name][metric] = milliseconds / 1000
    return dict(limits)


def goodput(outcome: SimulationOutcome, limits: Limits) -> Goodput:
    """Counts the requests that met their limits."""
    load = outcome.load
    per_s = outcome.per_s
    good = good_requests(outcome, limits)
    sent_count = Counter(load.kind)
    good_count = Counter(compress(load.kind, good))
    by_class = {
        class_name: Share(sent_count[kind], good_count[kind], good_count[kind] * per_s)
        for kind, class_name in enumerate(load.classes)
    }
    return Goodput(len(good), sum(good), sum(good) * per_s, by_class)


def good_requests(outcome: SimulationOutcome, limits: Limits) -> list[bool]:
    """Returns for each request whether it met all its limits; one without a first token did not."""
    return [max(ratios.values(), default=0.0) <= 1 for ratios in limit_ratios(outcome, limits)]


def limits_of(limits: Limits, class_name: str) -> dict[str, float]:
    """Returns the limits of a class, by metric."""
    return {**limits.get("", {}), **limits.get(class_name, {})}


def limit_ratios(outcome: SimulationOutcome, limits: Limits) -> Iterator[dict[str, float]]:
    """Yields each request's times by metric, as shares of its limits.

    The shares are infinite without a first token.
    """
    load = outcome.load
    limits_by_kind = [limits_of(limits, name) for name in load.classes or [""]]
    rows = zip(
        outcome.send_s,
        outcome.first_s,
        outcome.last_s,
        load.output_tokens,
        load.kind or repeat(0),
        strict=False,
    )
    for send_s, first_s, last_s, output_tokens, kind in rows:
        if math.isnan(first_s):
            yield dict.fromkeys(METRICS, math.inf)
            continue
        tpot_s = 0.0
        if output_tokens > 1:
            tpot_s = (last_s - first_s) / (output_tokens - 1)
        seconds = {"ttft": first_s - send_s, "tpot": tpot_s, "e2el": last_s - send_s}
        kind_limits = limits_by_kind[kind]
        yield {metric: seconds[metric] / limit_s for metric, limit_s in kind_limits.items()}


def check_classes(limits: Limits, load: LoadTrace) -> None:
    """Checks that the load has all classes of the limits.

    Raises:
        ConfigError: A class is missing.
    """
    for name in limits:
        if name and name not in load.classes:
            classes = ", and no column class"
            if load.classes:
                classes = f"; the classes are {', '.join(load.classes)}"
            raise ConfigError(f"--goodput: {load.origin} has no requests of class {name}{classes}")


def goodput_lines(result: Goodput, limits: Limits) -> list[str]:
    """Returns one line for each class, and one for all requests."""
    if not result.by_class:
        return [f"goodput: {result} ({_limits_text(limits, '')})"]
    lines = [
        f"goodput of {name}: {share} ({_limits_text(limits, name)})"
        for name, share in result.by_class.items()
    ]
    return [*lines, f"goodput: {result}"]


def _limits_text(limits: Limits, class_name: str) -> str:
    texts = [
        f"{metric} {1000 * limit_s:g} ms"
        for metric, limit_s in limits_of(limits, class_name).items()
    ]
    return ", ".join(texts) or "no limit"
