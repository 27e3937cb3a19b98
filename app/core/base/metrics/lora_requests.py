"""vllm:lora_requests_info: the adapters that run and wait."""

from collections import Counter as Tally
from collections.abc import Callable, Hashable
from sys import getsizeof
from typing import Literal

from app.core.base.metrics.instruments import Family, Gauge

AdapterStage = Literal["waiting", "running"]
HELP = "Unix time of the latest change; the labels are the adapters that run and wait since then."
MAX_SERIES = 64
"""Maximum number of combinations of adapters that are shown; readers use only the latest."""
LIMIT_BYTES = 2**18
"""Memory limit of the combinations, in bytes, as clients choose the names.

The latest one always stays.
"""
ENTRY_BYTES = 256
"""Memory of a combination without its two texts, in bytes."""


class LoraRequests:
    """One series per combination of running and waiting adapters.

    The value of a series is the Unix time at which its combination was last current. The series
    with the latest time is the current state, as in vLLM. `max_loras` is the setting `max-loras`;
    `now` returns Unix seconds.
    """

    def __init__(self, max_loras: int, now: Callable[[], float]) -> None:
        self._max_loras = str(max_loras)
        self._now = now
        self._stages: dict[Hashable, AdapterStage] = {}
        self._counters: dict[AdapterStage, Tally[str]] = {"running": Tally(), "waiting": Tally()}
        self._times: dict[tuple[str, str], float] = {}
        """Running and waiting names, joined by commas -> time when they were last current."""
        self.size_bytes = 0
        self.limit_bytes = LIMIT_BYTES
        self._record_combination()

    def move(self, owner: Hashable, adapter: str, stage: AdapterStage | None) -> None:
        """Records that `owner`, a request with `adapter`, starts to wait or to run.

        A `stage` of None records its end.
        """
        previous = self._stages.pop(owner, None)
        if stage is not None:
            self._stages[owner] = stage
        for changed, delta in ((previous, -1), (stage, 1)):
            if changed is not None:
                counter = self._counters[changed]
                counter[adapter] += delta
                if not counter[adapter]:
                    del counter[adapter]
                self._record_combination()

    def render(self) -> str:
        """Returns the family in the Prometheus text format."""
        family: Family[Gauge] = Family(
            "vllm:lora_requests_info", HELP, Gauge, kind="gauge", now=self._now
        )
        for (running, waiting), time_s in self._times.items():
            gauge = family.labels(
                max_lora=self._max_loras,
                running_lora_adapters=running,
                waiting_lora_adapters=waiting,
            )
            gauge.value = time_s
        return family.render()

    def _record_combination(self) -> None:
        """Makes the current combination the latest, and drops the oldest above the limits."""
        latest = ",".join(self._counters["running"]), ",".join(self._counters["waiting"])
        if self._times.pop(latest, None) is None:
            self.size_bytes += _entry_bytes(latest)
        self._times[latest] = self._now()
        while len(self._times) > 1 and (
            len(self._times) > MAX_SERIES or self.size_bytes > self.limit_bytes
        ):
            oldest = next(iter(self._times))
            del self._times[oldest]
            self.size_bytes -= _entry_bytes(oldest)


def _entry_bytes(key: tuple[str, str]) -> int:
    running, waiting = key
    return ENTRY_BYTES + getsizeof(running) + getsizeof(waiting)
