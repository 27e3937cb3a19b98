"""Steps of an engine: when each begins and ends (step model of docs/how-timing-works.md).

`StepLoop` is driven by the caller's time: it handles all events due up to a moment, each at its own
moment. A late call, as from a live timer, does not change the result. The server (`StepExecutor`)
and the offline simulation therefore agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf, nextafter
from typing import TYPE_CHECKING, Generic, TypeAlias

from app.core.engine.batch import Batch, S
from app.core.engine.scheduler import Scheduler
from app.core.engine.step_cost import CostModel

if TYPE_CHECKING:
    from app.core.engine.profile import FrontCosts

RETRY_S = 1e-3
"""Minimum time between two attempts to start a sequence whose blocks are on their way."""

WatchStep: TypeAlias = Callable[[Batch[S], float, float], None]


class StepLoop(Generic[S]):
    """Keeps at most `depth` steps under way: two with vLLM's async scheduling, one without.

    Subclasses handle the events `see`, `admitted` and `step_over`. All moments are in seconds.
    """

    def __init__(
        self, scheduler: Scheduler[S], cost: CostModel, front: FrontCosts, depth: int = 2
    ) -> None:
        self.scheduler = scheduler
        scheduler.on_fetch = self._start_transfer
        self.now_s = -inf
        self.next_s = inf
        """Time of the next event, inf without one.

        Arrivals count only while no step is under way.
        """
        self.steps = 0
        self.line: deque[tuple[float, S]] = deque()
        """Sequences in the front end, with the times at which the scheduler sees them."""
        self._front = front
        self._cost = cost
        self._out_s = front.out_per_stream
        self._depth = depth
        self._under_way: deque[tuple[float, Batch[S]]] = deque()
        """End time and batch of each step under way."""
        self._end_s = -inf
        """End time of the latest step."""
        self._handed_out_s = -inf
        """Time at which the last token of earlier steps is handed out."""
        self.transfers: list[tuple[float, int, S]] = []
        """A heap: arrival time of each remote prefill's cache, arrival number, sequence."""
        self._seen_s = -inf
        """Time at which the scheduler sees the latest sequence."""
        self.watch_step: WatchStep[S] | None = None
        """Receives each new step, with its start and its end in seconds."""
        self.watch_stall: Callable[[], None] | None = None
        """Called when no step could be made."""

    def see(self, sequence: S, at_s: float) -> None:
        """Gives the scheduler a sequence that leaves the front end."""
        self.scheduler.waiting.add(sequence)

    def transfer_s(self, sequence: S) -> float:
        """Returns the seconds until the cache of a remote prefill has arrived."""
        return 0.0

    def admitted(self, batch: Batch[S]) -> None:
        """Called for each new step that admits sequences."""

    def step_over(self, batch: Batch[S], first_s: float, gap_s: float) -> None:
        """Called when a step's tokens are ready.

        Stream j gets its token at `first_s + j * gap_s`.
        """
        raise NotImplementedError

    def send(self, sequence: S, arrival_s: float, apart: bool = False) -> float:
        """Takes a sequence into the front end.

        With `apart` the scheduler sees it after all earlier ones. Returns when the scheduler would
        see the sequence if it were alone.
        """
        due_s = arrival_s + self._front.front + self._front.front_per_token * sequence.prompt_tokens
        earliest_s = self._seen_s
        if apart:
            earliest_s = nextafter(earliest_s, inf)
        self._seen_s = seen_s = max(earliest_s, due_s)
        self.line.append((seen_s, sequence))
        if seen_s < self.next_s and not self._under_way:
            self.next_s = seen_s
        return due_s

    def wake(self, at_s: float) -> None:
        """Checks at `at_s` whether a step can be made, if none is under way then."""
        if at_s < self.next_s and not self._under_way:
            self.next_s = at_s

    def preempt_all(self) -> None:
        """Preempts all running sequences; see `Scheduler.preempt_all`."""
        self.scheduler.preempt_all([batch for _, batch in self._under_way])

    def advance(self, now_s: float) -> float:
        """Handles all events due by `now_s`; returns the time of the next event, or inf."""
        while self.next_s <= now_s and self.next_s < inf:
            self.go_on()
        return self.next_s

    def go_on(self) -> None:  # runs for each step: more calls would slow it down
        """Handles the next event: completes the oldest step, and makes as many as fit `depth`."""
        self.now_s = now_s = max(self.next_s, self.now_s)
        scheduler = self.scheduler
        line = self.line
        transfers = self.transfers
        under_way = self._under_way
        if under_way:
            end_s, completed = under_way.popleft()
            first_s = max(end_s, self._handed_out_s) + self._out_s
            streams = len(completed.decodes) + len(completed.prefilled) - len(completed.overruns)
            self._handed_out_s = first_s + (streams - 1) * self._out_s
            self.step_over(completed, first_s, self._out_s)
            scheduler.complete(completed)
        while len(under_way) < self._depth:
            while line and line[0][0] <= now_s:
                seen_s, sequence = line.popleft()
                self.see(sequence, seen_s)
            while transfers and transfers[0][0] <= now_s:
                scheduler.fetched(heappop(transfers)[2])
            batch = scheduler.schedule()
            if batch is None:
                if self.watch_stall is not None:
                    self.watch_stall()
                break
            start_s = max(now_s, self._end_s)
            end_s = start_s + self._cost.seconds(batch, start_s, self._end_s <= now_s)
            self._end_s = end_s
            under_way.append((end_s, batch))
            self.steps += 1
            if self.watch_step is not None:
                self.watch_step(batch, start_s, end_s)
            if batch.admitted:
                self.admitted(batch)
        if under_way:
            self.next_s = under_way[0][0]
            return
        self.next_s = self._next_chance_s()

    def _next_chance_s(self) -> float:
        """Returns when a step can be made that cannot be made now."""
        arrival_s = self.line[0][0] if self.line else inf
        transfer_s = self.transfers[0][0] if self.transfers else inf
        if not self.scheduler.has_passed:
            return min(arrival_s, transfer_s)
        # The clock may not have come to the end of the transfer.
        retry_s = max(self.scheduler.retry_s(), self.now_s + RETRY_S)
        return min(arrival_s, transfer_s, retry_s)

    def _start_transfer(self, sequence: S) -> None:
        arrival_s = self.now_s + self.transfer_s(sequence)
        heappush(self.transfers, (arrival_s, sequence.arrived, sequence))
