"""Steps of an engine: what each costs, and when it begins and ends (step model of docs/fidelity.md).

`StepLoop` is driven by the caller's time: it handles all events due up to a moment, each at its own moment. A
late call, as from a live timer, does not change the result. The server and the offline simulation therefore
agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import exp, inf, nextafter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

from app.engine.core.batch import Batch, S
from app.engine.core.scheduler import Scheduler

if TYPE_CHECKING:
    from config.profile import CostConstants, FrontCosts

TILE_ROWS = 128
"""Rows of a matrix product that a device computes together."""


class CostModel(Protocol):
    """Cost of steps: `StepCost`, or a plugin's own class."""

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        """See `StepCost.seconds`. Called once per step, in order; must not wait."""


class StepCost:
    """Computes the cost of consecutive steps. Prefill soon after prefill is slower."""

    def __init__(self, constants: CostConstants) -> None:
        self._constants = constants
        self._gemm: dict[int, float] = {}
        """Cost of the matrix products by tokens of a step; few token counts occur."""
        self._heat = 0.0
        self._heated_s = 0.0

    def seconds(self, batch: Batch[S], start_s: float, idle: bool) -> float:
        """Returns the cost of `batch` from `start_s` on; `idle` if the step before had ended by then."""
        its = self._constants
        gemm = self._gemm.get(batch.tokens)
        if gemm is None:
            gemm = self._gemm[batch.tokens] = self._products(batch.tokens)
        cost = its.base + gemm + its.per_context * batch.context + its.per_sequence * batch.sequences
        if batch.prefills:
            attention = its.per_attention * batch.attention
            cost += attention + its.mixed_context * batch.context
            cost = self._heated(cost, gemm + attention, start_s)
        return cost + its.wake if idle else cost

    def _products(self, tokens: int) -> float:
        """Returns the cost of the matrix products: p-norm of reading weights and computing, plus spill."""
        its = self._constants
        rows = tokens + its.tile * (-tokens % TILE_ROWS)
        reading, computing = its.weights, its.per_token * rows
        if its.expert_weights:
            reading += its.expert_weights * (1 - (1 - its.expert_share) ** tokens)
        most = max(reading, computing)
        if not most:
            return its.spill * tokens * tokens
        norm = most * ((reading / most) ** its.p + (computing / most) ** its.p) ** (1 / its.p)
        return float(norm + its.spill * tokens * tokens)

    def _heated(self, cost: float, computing: float, start_s: float) -> float:
        """Returns the cost of a step with prefill at the device's current heat, and heats the device."""
        tau, slowdown = self._constants.tau, self._constants.slowdown
        if not slowdown or not cost:
            return cost
        cold = 1.0 - self._heat * exp((self._heated_s - start_s) / tau)
        x = cost / tau
        cost += slowdown * computing * (1.0 - cold * (1.0 - exp(-x)) / x)
        self._heat = 1.0 - cold * exp(-cost / tau)
        self._heated_s = start_s + cost
        return cost


WatchStep: TypeAlias = Callable[[Batch[S], float, float], None]


class StepLoop(Generic[S]):
    """Keeps at most `depth` steps under way: two with vLLM's async scheduling, one without.

    Subclasses handle the events `seen`, `step_made` and `step_over`. All moments are in seconds.
    """

    def __init__(self, scheduler: Scheduler[S], cost: CostModel, front: FrontCosts, depth: int = 2) -> None:
        self.scheduler = scheduler
        self.now_s = -inf
        self.next_s = inf
        """Time of the next event, inf without one. Arrivals count only while no step is under way."""
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
        self._transfers: list[tuple[float, int, S]] = []
        """A heap: arrival time of each remote prefill's cache, arrival number, sequence."""
        self._seen_s = -inf
        self.watch_step: WatchStep[S] | None = None
        """Receives each new step, with its start and its end in seconds."""

    def seen(self, sequence: S, at_s: float) -> bool:
        """Called when the scheduler would see a sequence; returns whether to schedule it."""
        return True

    def transfer_s(self, sequence: S) -> float:
        return 0.0

    def admitted(self, batch: Batch[S]) -> None:
        """Called for each new step that admits sequences."""

    def step_over(self, batch: Batch[S], first_s: float, gap_s: float) -> None:
        """Called when a step's tokens are ready; stream j gets its token at `first_s + j * gap_s`."""
        raise NotImplementedError

    def send(self, sequence: S, arrival_s: float, apart: bool = False) -> float:
        """Takes a sequence, seen after earlier ones if `apart`; returns when it would be visible alone."""
        due_s = self._front.visible_s(arrival_s, sequence.prompt_tokens)
        self._seen_s = max(nextafter(self._seen_s, inf) if apart else self._seen_s, due_s)
        self.line.append((self._seen_s, sequence))
        self.wake(self._seen_s)
        return due_s

    def wake(self, at_s: float) -> None:
        """Checks at `at_s` whether a step can be made, if none is under way then."""
        if at_s < self.next_s and not self._under_way:
            self.next_s = at_s

    def advance(self, now_s: float) -> float:
        """Handles all events due by `now_s`; returns the time of the next event, or inf."""
        while self.next_s <= now_s and self.next_s < inf:
            self.go_on()
        return self.next_s

    def go_on(self) -> None:
        self.now_s = now_s = max(self.next_s, self.now_s)
        scheduler, line, under_way = self.scheduler, self.line, self._under_way
        if under_way:
            end_s, over = under_way.popleft()
            first_s = max(end_s, self._handed_out_s) + self._out_s
            self._handed_out_s = first_s + (len(over.decodes) + len(over.prefilled) - 1) * self._out_s
            self.step_over(over, first_s, self._out_s)
            scheduler.complete(over)
        while len(under_way) < self._depth:
            while line and line[0][0] <= now_s:
                at_s, sequence = line.popleft()
                if self.seen(sequence, at_s):
                    scheduler.waiting.add(sequence)
            while self._transfers and self._transfers[0][0] <= now_s:
                scheduler.fetched(heappop(self._transfers)[2])
            fetching = len(scheduler.fetching)
            batch = scheduler.schedule()
            for sequence in scheduler.fetching[fetching:]:
                heappush(self._transfers, (now_s + self.transfer_s(sequence), sequence.arrived, sequence))
            if batch is None:
                break
            start_s = max(now_s, self._end_s)
            self._end_s = end_s = start_s + self._cost.seconds(batch, start_s, self._end_s <= now_s)
            under_way.append((end_s, batch))
            self.steps += 1
            if self.watch_step is not None:
                self.watch_step(batch, start_s, end_s)
            if batch.admitted:
                self.admitted(batch)
        if under_way:
            self.next_s = under_way[0][0]
        else:
            self.next_s = line[0][0] if line else inf
            if self._transfers and self._transfers[0][0] < self.next_s:
                self.next_s = self._transfers[0][0]
