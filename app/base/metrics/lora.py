"""Families of adapters: running, waiting and loaded ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from sys import getsizeof
from typing import Literal

from app.base.metrics.instruments import Family, Gauge

AdapterStage = Literal["waiting", "running"]
MOST_SERIES = 64
"""Most combinations of adapters that are shown; readers use the latest only."""
LIMIT_BYTES = 2**18
"""Most memory of the combinations, in bytes: clients choose the names. The latest one is always kept."""
ENTRY_BYTES = 256
"""Memory of a combination without its two texts, in bytes."""


class LoraRequests:
    """vllm:lora_requests_info: one series per combination of running and waiting adapters.

    The value of a series is the Unix time at which its combination was last current. The series with the
    latest time is the present state (vllm-api.md 11.1). `most` is `max-loras`; `now` returns Unix seconds.
    """

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most, self._now = str(most), now
        self._stages: dict[Hashable, AdapterStage] = {}
        self._counters: dict[AdapterStage, Counter[str]] = {"running": Counter(), "waiting": Counter()}
        self._latest = "", ""
        """Names of the running and of the waiting adapters, joined by commas."""
        self._held: dict[tuple[str, str], float] = {}
        """Maps running and waiting names to the time they were last current; the latest is last."""
        self._text = ""
        self.size_bytes = 0
        self.limit_bytes = LIMIT_BYTES
        self._note()

    def move(self, owner: Hashable, adapter: str, stage: AdapterStage | None) -> None:
        """Notes that `owner`, a request with `adapter`, began to wait or to run; None: that it ended."""
        if (before := self._stages.pop(owner, None)) is not None:
            self._count(before, adapter, -1)
        if stage is not None:
            self._stages[owner] = stage
            self._count(stage, adapter, 1)

    def _count(self, stage: AdapterStage, adapter: str, delta: int) -> None:
        counter = self._counters[stage]
        counter[adapter] += delta
        if not counter[adapter]:
            del counter[adapter]
        self._latest = ",".join(self._counters["running"]), ",".join(self._counters["waiting"])
        self._note()

    def render(self) -> str:
        if not self._text:
            help = "Unix time of the latest change; the labels are what runs and waits since then."
            family: Family[Gauge] = Family("vllm:lora_requests_info", help, Gauge, "gauge", self._now)
            for (running, waiting), held_s in self._held.items():
                adapters = {"running_lora_adapters": running, "waiting_lora_adapters": waiting}
                family.labels(max_lora=self._most, **adapters).set(held_s)
            self._text = family.render()
        return self._text

    def _note(self) -> None:
        """Makes the present combination the latest, and drops the oldest beyond the limits."""
        self._text = ""
        if self._held.pop(self._latest, None) is None:
            self.size_bytes += _entry_bytes(self._latest)
        self._held[self._latest] = self._now()
        while len(self._held) > MOST_SERIES or self.size_bytes > self.limit_bytes and len(self._held) > 1:
            first = next(iter(self._held))
            del self._held[first]
            self.size_bytes -= _entry_bytes(first)


def _entry_bytes(key: tuple[str, str]) -> int:
    return ENTRY_BYTES + getsizeof(key[0]) + getsizeof(key[1])
