"""The pipeline of an engine's steps, on time that is handed in (step model of docs/fidelity.md: 1, 2 and 5).

A loop does all that is due up to a moment, event by event, each at its own moment: whoever calls it late, as
a live timer does, changes nothing of what it says. So the server and the offline simulation tell the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, Protocol

from app.engine.batch import Batch, S
from app.engine.scheduler import Scheduler
from app.engine.step_cost import CostModel


class Arrivals(Protocol[S]):
    """Requests on their way to the scheduler, in the order in which it sees them."""

    def next_s(self) -> float | None:
        """When the first is seen; None when none is on its way, as far as one can know."""

    def take(self, until_s: float) -> list[S]:
        """Those that are seen by then."""


class Outputs(Protocol[S]):
    """Takes the tokens of a step that is over."""

    def step_made(self, batch: Batch[S], start_s: float, end_s: float) -> None:
        """A step was made; it runs, or will run, from `start_s` to `end_s`."""

    def step_over(self, batch: Batch[S], first_s: float, gap_s: float) -> None:
        """Its tokens are there: those of the j-th stream at `first_s + j * gap_s`."""


class StepLoop(Generic[S]):
    """At most `depth` steps under way: two with vLLM's async scheduling, one without."""

    def __init__(
        self,
        scheduler: Scheduler[S],
        cost: CostModel,
        arrivals: Arrivals[S],
        outputs: Outputs[S],
        out_per_stream_s: float = 0.0,
        depth: int = 2,
        transfer_s: Callable[[S], float] = lambda sequence: 0.0,
    ) -> None:
        """`transfer_s` tells how long the cache of a remote prefill takes to come."""
        self.scheduler = scheduler
        self.now_s = float("-inf")
        """The moment of the last thing that was done."""
        self.steps = 0
        """Steps made."""
        self._cost = cost
        self._arrivals = arrivals
        self._outputs = outputs
        self._out_s = out_per_stream_s
        self._depth = depth
        self._under_way: deque[tuple[float, Batch[S]]] = deque()
        """The end of each step, and what it holds."""
        self._end_s = float("-inf")
        """Of the last step made."""
        self._front_s = float("-inf")
        """When all tokens of the steps before are handed out."""
        self._transfers: list[tuple[float, int, S]] = []
        """When the caches of remote prefills are there."""
        self._transfer_s = transfer_s
        self._wake_s: float | None = None

    def wake(self, now_s: float) -> None:
        """Something has changed while no step is under way: look at `now_s` whether one can be made."""
        self._wake_s = now_s

    def advance(self, now_s: float) -> float | None:
        """Do all that is due by `now_s`; when to do the next thing, None while there is nothing to do."""
        while (due_s := self.next_s()) is not None and due_s <= now_s:
            self.go_on(due_s)
        return due_s

    @property
    def busy(self) -> bool:
        """Whether a step is under way."""
        return bool(self._under_way)

    def next_s(self) -> float | None:
        """The moment of what comes next, None while there is nothing to do.

        Arrivals are looked at only when a step can be made.
        """
        if self._under_way:
            return self._under_way[0][0]
        next_s = self._arrivals.next_s()
        if self._wake_s is not None and (next_s is None or self._wake_s < next_s):
            next_s = self._wake_s
        if self._transfers and (next_s is None or self._transfers[0][0] < next_s):
            next_s = self._transfers[0][0]
        return next_s

    def go_on(self, due_s: float) -> None:
        """Do what comes next, which is due at `due_s`."""
        self.now_s = now_s = max(due_s, self.now_s)
        if self._under_way:
            self._complete(*self._under_way.popleft())
        while len(self._under_way) < self._depth and self._make(now_s):
            pass
        self._wake_s = None

    def _complete(self, end_s: float, batch: Batch[S]) -> None:
        first_s = max(end_s, self._front_s) + self._out_s
        self._front_s = first_s + (len(batch.decodes) + len(batch.prefilled) - 1) * self._out_s
        self._outputs.step_over(batch, first_s, self._out_s)
        self.scheduler.complete(batch)

    def _make(self, now_s: float) -> bool:
        """Make the next step, if there is something to compute."""
        scheduler = self.scheduler
        for sequence in self._arrivals.take(now_s):
            scheduler.add(sequence)
        while self._transfers and self._transfers[0][0] <= now_s:
            scheduler.fetched(heappop(self._transfers)[2])
        fetching = len(scheduler.fetching)
        batch = scheduler.schedule()
        for sequence in scheduler.fetching[fetching:]:
            heappush(self._transfers, (now_s + self._transfer_s(sequence), sequence.arrived, sequence))
        if batch is None:
            return False
        idle = self._end_s <= now_s
        start_s = max(now_s, self._end_s)
        self._end_s = end_s = start_s + self._cost.seconds(batch, start_s, idle)
        self._under_way.append((end_s, batch))
        self.steps += 1
        self._outputs.step_made(batch, start_s, end_s)
        return True
