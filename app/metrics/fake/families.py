"""The `vllm:` families that fake metrics name, with their numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.metrics.fake.functions import value_at
from app.metrics.fake.keys import ADAPTERS, WHOLE, Told, observed, told
from app.metrics.families import TABLE, build
from app.metrics.instruments import Gauge
from app.metrics.text import Family
from config import Settings
from config.fake_metrics import FakeAdapters, FakeMetrics, Function, parse

CACHE_CONFIG = "vllm:cache_config_info"
ROUNDING = 1e-9
"""Keeps 29 % of the way from 0 to 100 from being 28 by a rounding of floats."""
_OTHER_NAMES = {
    spec.name: tuple(other.name for other in TABLE if other.alias_of == spec.name) for spec in TABLE
}


@dataclass(frozen=True, slots=True)
class _Part:
    """What is told since `since_s` of the clock, in one family for each of its names."""

    value: Told
    families: tuple[Family[Any], ...]
    since_s: float


class FakeFamilies:
    """Tells fake metrics when there are some; subscribe `follow` to the live settings.

    Families that are not named are absent; nothing that happens in the server is counted. Labels, bounds and
    names are the true ones. `cache_config` is as for `Recorder` (ValueError: see `families.build`). `clock`
    gives monotonic seconds: a function starts when it is set. `now` gives Unix seconds.
    """

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        cache_config: Mapping[str, str],
        max_loras: int,
        engine: str = "0",
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._server = {"model_name": model_name, "engine": engine}
        self._max_model_len, self._max_loras = max_model_len, str(max_loras)
        self._clock, self._now = clock, now
        self._build = partial(build, self._server, max_model_len, cache_config, now)
        self._cache_config = self._build()[CACHE_CONFIG]
        for _, info in self._cache_config.children():
            info.set(1)
        self._refresh_s = 0.1
        self._fakes: FakeMetrics | None = None
        self._parts: dict[str, _Part] = {}

    @property
    def active(self) -> bool:
        """Whether fake metrics are to be told in place of the true ones."""
        return self._fakes is not None

    def follow(self, settings: Settings) -> None:
        """Tell what `settings`, which are valid, say; what they leave as it is goes on as it was."""
        self._refresh_s = settings.metrics.fake_metrics_refresh_interval
        fakes = parse(settings.metrics.fake_metrics)
        if fakes == self._fakes:
            return
        fresh, before = self._build(), self._parts
        self._fakes, self._parts = fakes, {}
        for name, value in told(fakes, self._max_model_len) if fakes else ():
            known = before.get(name)
            self._parts[name] = known if known and known.value == value else self._part(name, value, fresh)

    def render(self) -> str:
        """The text of all families that are told."""
        at_s = self._clock()
        families = [self._cache_config]
        for name, part in self._parts.items():
            if isinstance(part.value, Function):
                level = value_at(part.value, at_s - part.since_s, self._refresh_s)
                _only(part.families[0]).set(int(level + ROUNDING) if name in WHOLE else level)
            families.extend(part.families)
        return "".join(family.render() for family in families)

    def _part(self, name: str, value: Any, fresh: Mapping[str, Family[Any]]) -> _Part:
        families: tuple[Family[Any], ...]
        if name == ADAPTERS:
            families = (self._adapters(value or (FakeAdapters("", "", self._now()),)),)
        else:
            families = tuple(fresh[known] for known in (name, *_OTHER_NAMES[name]))
            self._fill(families[0], value)
        return _Part(value, families, self._clock())

    def _fill(self, family: Family[Any], value: Any) -> None:
        """Give a family at zero its numbers; those of a function come with each scrape."""
        if family.kind == "histogram":
            histogram = _only(family)
            for seen, count in observed(value, histogram.bounds):
                histogram.observe(seen, count)
        elif isinstance(value, Mapping):
            for reason, count in value.items():
                family.labels(**self._server, finished_reason=reason).inc(count)
        elif not isinstance(value, Function):
            _only(family).value = value

    def _adapters(self, entries: Iterable[FakeAdapters]) -> Family[Gauge]:
        help = "Adapters that run and wait; the value is the time of the entry."
        family = Family(ADAPTERS, help, Gauge, "gauge", self._now)
        for entry in entries:
            labels = {"running_lora_adapters": entry.running, "waiting_lora_adapters": entry.waiting}
            family.labels(max_lora=self._max_loras, **labels).set(entry.timestamp)
        return family


def _only(family: Family[Any]) -> Any:
    """The instrument of a family with one series."""
    ((_, instrument),) = family.children()
    return instrument
