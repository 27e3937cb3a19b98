"""Prometheus instruments, their families, and the body of `GET /metrics` (text format 0.0.4).

Instruments are plain attributes without locks: one greenlet hub owns them. `samples` are an
instrument's sample lines (suffix of the metric name, extra labels) in the order of
prometheus_client. `values()` returns their numbers.

A child formats all text but the numbers at its first scrape: later scrapes only fill in numbers.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from math import isinf, isnan
from typing import ClassVar, Generic, TypeAlias, TypeVar

Samples: TypeAlias = Sequence[tuple[str, Mapping[str, str]]]
Families: TypeAlias = Callable[[], str]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EXPONENT_FROM = 1_000_000
"""Number from which Go's format, which prometheus_client follows, uses an exponent."""


def number(value: float) -> str:
    """Formats `value` like prometheus_client: `1.0`, `0.25`, `1.5e+06`, `+Inf`, `NaN`."""
    if value.__class__ is int and 0 <= value < EXPONENT_FROM:
        return f"{value}.0"
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    whole, _, fraction = text.partition(".")
    if value >= EXPONENT_FROM and len(whole) > 6 and "e" not in text:
        mantissa = f"{whole[0]}.{whole[1:]}{fraction}".rstrip("0").rstrip(".")
        return f"{mantissa}e+{len(whole) - 1:02}"
    return text


class Counter:
    """A number that only increases."""

    __slots__ = ("value",)
    samples: ClassVar[Samples] = (("_total", {}),)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Adds `amount`."""
        self.value += amount

    def values(self) -> tuple[float, ...]:
        """Returns the numbers of the samples."""
        return (self.value,)


class Gauge(Counter):
    """A number that may be set to any value."""

    __slots__ = ()
    samples: ClassVar[Samples] = (("", {}),)


class Summary:
    """Count and sum of observations, without quantiles."""

    __slots__ = ("count", "sum")
    samples: ClassVar[Samples] = (("_count", {}), ("_sum", {}))

    def __init__(self) -> None:
        self.count = 0
        self.sum: float = 0.0

    def observe_all(self, values: Sequence[float]) -> None:
        """Observes each value."""
        self.count += len(values)
        self.sum += sum(values)

    def values(self) -> tuple[float, ...]:
        """Returns the numbers of the samples."""
        return (self.count, self.sum)


class Histogram:
    """Observations in buckets.

    `bounds` are the buckets' inclusive upper bounds, strictly ascending; +Inf is implied. `counts`
    holds one number per bucket, not cumulative.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Observes a value `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def observe_all(self, values: Iterable[float]) -> None:
        """Observes each value; for many values six times as fast as `observe`."""
        values = list(values)
        if not values:
            return
        lowest = min(values)
        highest = max(values)
        ordered = values
        # Most gaps between tokens differ by their rounding only, and need no order.
        if bisect_left(self.bounds, lowest) != bisect_left(self.bounds, highest):
            ordered = sorted(values)
        start = 0
        while start < len(ordered):
            bucket = bisect_left(self.bounds, ordered[start])
            end = len(ordered)
            if bucket < len(self.bounds):
                end = bisect_right(ordered, self.bounds[bucket], start)
            self.counts[bucket] += end - start
            start = end
        if not lowest and not highest:
            return  # only zeros: nothing to add
        total = self.sum
        for value in values:  # in their order, for the same rounding as single observations
            total += value
        self.sum = total

    @property
    def samples(self) -> Samples:
        """Suffix and further labels of each sample."""
        bounds = [number(bound) for bound in (*self.bounds, float("inf"))]
        return [*(("_bucket", {"le": bound}) for bound in bounds), ("_count", {}), ("_sum", {})]

    def values(self) -> tuple[float, ...]:
        """Returns the numbers of the samples."""
        cumulative = tuple(accumulate(self.counts))
        return (*cumulative, cumulative[-1], self.sum)


Instrument: TypeAlias = Counter | Summary | Histogram
InstrumentT = TypeVar("InstrumentT", bound=Instrument)


def label_text(labels: Mapping[str, str]) -> str:
    """Formats labels as `{a="1",b="2"}`, sorted by name; empty without labels.

    Lone surrogates, which UTF-8 cannot encode, become `?`.
    """
    pairs = []
    for name, value in sorted(labels.items()):
        valid = value.encode("utf-8", "replace").decode().replace("\\", r"\\")
        escaped = valid.replace("\n", r"\n").replace('"', r"\"")
        pairs.append(f'{name}="{escaped}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""


class _Child(Generic[InstrumentT]):
    """A labeled instrument; `base` begins the names of its samples."""

    def __init__(self, base: str, labels: Mapping[str, str], instrument: InstrumentT) -> None:
        self.instrument = instrument
        self.labels = dict(labels)
        self._base = base
        self._values: tuple[float, ...] = ()
        self._text = ""

    @cached_property
    def _template(self) -> str:
        """The lines of the samples without their numbers."""
        lines = (
            f"{self._base}{suffix}{label_text({**self.labels, **extra})}"
            for suffix, extra in self.instrument.samples
        )
        return "".join(line.replace("%", "%%") + " %s\n" for line in lines)

    def text(self) -> str:
        """Returns the lines of the samples."""
        values = self.instrument.values()
        if values != self._values:
            self._values = values
            self._text = self._template % tuple(map(number, values))
        return self._text


class Family(Generic[InstrumentT]):
    """A metric with its help text, and one instrument per combination of label values.

    `name` is the scraped name (a counter's ends in `_total`); `create` makes the instrument of a
    new child; `now` returns Unix seconds for the `_created` samples.
    """

    def __init__(
        self,
        name: str,
        help: str,
        create: Callable[[], InstrumentT],
        *,
        kind: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.help = help
        self.kind = kind
        self._base = name.removesuffix("_total") if kind == "counter" else name
        self._create = create
        self._now = now
        self._children: dict[tuple[tuple[str, str], ...], _Child[InstrumentT]] = {}
        escaped = help.replace("\\", r"\\").replace("\n", r"\n")
        self._head = f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n"
        self._tail = ""
        if kind != "gauge":  # gauges have no creation time
            created = f"{self._base}_created"
            self._tail = f"# HELP {created} {escaped}\n# TYPE {created} gauge\n"

    def labels(self, **labels: str) -> InstrumentT:
        """Returns the child with these label values; creates a missing one."""
        child = self._children.get(tuple(sorted(labels.items())))
        return child.instrument if child else self.add(self._create(), labels)

    def add(self, instrument: InstrumentT, labels: Mapping[str, str]) -> InstrumentT:
        """Adds `instrument` with these labels; an instrument may belong to several families."""
        self._children[tuple(sorted(labels.items()))] = _Child(self._base, labels, instrument)
        if self.kind != "gauge":
            self._tail += f"{self._base}_created{label_text(labels)} {number(self._now())}\n"
        return instrument

    def children(self) -> Iterator[tuple[dict[str, str], InstrumentT]]:
        """Yields labels and instrument of each child."""
        return ((child.labels, child.instrument) for child in self._children.values())

    def render(self) -> str:
        """Returns the family in the Prometheus text format."""
        return "".join(
            (self._head, *(child.text() for child in self._children.values()), self._tail)
        )


class Exposition:
    """Renders `families` for a scrape, after the Python and process families.

    The process families are read at most once per `process_age_s` seconds of `clock`: they read
    files of /proc and list all open connections, and a router may scrape every 50 ms.
    """

    def __init__(
        self,
        families: Sequence[Families],
        process: Families,
        clock: Callable[[], float] = time.monotonic,
        process_age_s: float = 5.0,
    ) -> None:
        self._families = families
        self._process = process
        self._clock = clock
        self._process_age_s = process_age_s
        self._process_text = ""
        self._process_due = float("-inf")

    def render(self) -> bytes:
        """Returns the body of a scrape."""
        now = self._clock()
        if now >= self._process_due:
            self._process_text = self._process()
            self._process_due = now + self._process_age_s
        return "".join((self._process_text, *(families() for families in self._families))).encode()
