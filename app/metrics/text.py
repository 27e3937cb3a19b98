"""A metric family and its text in the Prometheus exposition format 0.0.4, as prometheus_client prints it.

Everything but the numbers is known when a child is created, so it is written then: a scrape fills in numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from app.metrics.instruments import Instrument, number

InstrumentT = TypeVar("InstrumentT", bound=Instrument)


def escape_label(value: str) -> str:
    """A label value between its quotes; what UTF-8 cannot carry (lone surrogates) becomes `?`."""
    valid = value.encode("utf-8", "replace").decode("utf-8")
    return valid.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def label_text(labels: Mapping[str, str]) -> str:
    """`{a="1",b="2"}`, sorted by name, or nothing for no labels."""
    pairs = ",".join(f'{name}="{escape_label(value)}"' for name, value in sorted(labels.items()))
    return f"{{{pairs}}}" if pairs else ""


class _Child(Generic[InstrumentT]):
    """One labelled instrument with the template of its lines."""

    __slots__ = ("instrument", "labels", "template", "_values", "_text")

    def __init__(self, base: str, labels: Mapping[str, str], instrument: InstrumentT) -> None:
        self.instrument = instrument
        self.labels = dict(labels)
        lines = (f"{base}{suffix}{label_text({**labels, **extra})}" for suffix, extra in instrument.samples())
        self.template = "".join(line.replace("%", "%%") + " %s\n" for line in lines)
        self._values: tuple[float, ...] = ()
        self._text = ""

    def text(self) -> str:
        values = self.instrument.values()
        if values != self._values:
            self._values = values
            self._text = self.template % tuple(map(number, values))
        return self._text


class Family(Generic[InstrumentT]):
    """A name, its help, and one instrument per combination of label values.

    `name` is the name as scraped (a counter's ends in `_total`); `create` makes the instrument of a new
    child; `now` gives Unix seconds for the `_created` samples.
    """

    def __init__(
        self,
        name: str,
        help: str,
        create: Callable[[], InstrumentT],
        kind: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.name, self.help, self.kind = name, help, kind
        self._base = name.removesuffix("_total") if kind == "counter" else name
        self._create, self._now = create, now
        self._children: dict[tuple[tuple[str, str], ...], _Child[InstrumentT]] = {}
        escaped = help.replace("\\", r"\\").replace("\n", r"\n")
        self._head = f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n"
        created = f"{self._base}_created"
        # Gauges have no creation time.
        self._tail = "" if kind == "gauge" else f"# HELP {created} {escaped}\n# TYPE {created} gauge\n"

    def labels(self, **labels: str) -> InstrumentT:
        """The child with these label values, made when it does not exist yet."""
        child = self._children.get(tuple(sorted(labels.items())))
        return child.instrument if child else self.add(self._create(), labels)

    def add(self, instrument: InstrumentT, labels: Mapping[str, str]) -> InstrumentT:
        """Print `instrument` under these labels; an instrument may stand in several families."""
        self._children[tuple(sorted(labels.items()))] = _Child(self._base, labels, instrument)
        if self.kind != "gauge":
            self._tail += f"{self._base}_created{label_text(labels)} {number(self._now())}\n"
        return instrument

    def children(self) -> Iterator[tuple[dict[str, str], InstrumentT]]:
        """Label values and instrument of every child, in order of creation."""
        return ((child.labels, child.instrument) for child in self._children.values())

    def render(self) -> str:
        """The family's text; like prometheus_client, head lines are printed even when there is no child."""
        return "".join((self._head, *(child.text() for child in self._children.values()), self._tail))
