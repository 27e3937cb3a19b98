"""vllm:lora_requests_info: which adapters run and wait, as labels of a gauge that tells the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from app.metrics.instruments import Gauge
from app.metrics.text import Family

KEPT = 64
"""Combinations of adapters that are told; readers look at the latest only, and names may be without end."""


class LoraRequests:
    """One series per combination of running and waiting adapters; its value is when it last held (Unix s).

    The latest series tells the state of now (vllm-api.md 11.1). `most` is `max-loras`.
    """

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        help = "Unix time of the latest change; the labels are what runs and waits since then."
        self.family: Family[Gauge] = Family("vllm:lora_requests_info", help, Gauge, "gauge", now)
        self._most, self._now = str(most), now
        self._running: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._tell()

    def running(self, adapter: str, delta: int) -> None:
        """So many requests with `adapter` began (or, negative, ceased) to run."""
        self._count(self._running, adapter, delta)

    def waiting(self, adapter: str, delta: int) -> None:
        """So many requests with `adapter` began (or, negative, ceased) to wait."""
        self._count(self._waiting, adapter, delta)

    def _count(self, counter: Counter[str], adapter: str, delta: int) -> None:
        counter[adapter] += delta
        if not counter[adapter]:
            del counter[adapter]
        self._tell()

    def _tell(self) -> None:
        self.family.latest(
            KEPT,
            max_lora=self._most,
            running_lora_adapters=",".join(self._running),
            waiting_lora_adapters=",".join(self._waiting),
        ).set(self._now())
