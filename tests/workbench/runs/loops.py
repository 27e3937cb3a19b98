"""What tests of the step loop share."""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from app.core.engine.batch import Batch
from app.core.engine.profile import Profile
from app.core.engine.scheduler import Scheduler
from app.core.engine.step_cost import StepCost
from app.core.engine.step_loop import StepLoop
from workbench.runs.pod import OfflineRequest


class ClientLoop(StepLoop[OfflineRequest]):
    """An engine and its client in their simplest form: what `Simulation` and servers are compared
    with.

    The client sends what `load` holds, in order of arrival, with at most `in_flight` requests at a
    time. A place is free again `turnaround_s` after the last token of the request that had it. The
    moments of the first and the last token are written into each request.
    """

    def __init__(
        self,
        load: Sequence[OfflineRequest],
        scheduler: Scheduler[OfflineRequest],
        profile: Profile,
        in_flight: int | None = None,
        turnaround_s: float = 0.0,
    ) -> None:
        super().__init__(scheduler, StepCost(profile.cost), profile.front)
        self._load = list(load)
        self._turnaround_s = turnaround_s
        self._places: list[float] | None = (
            None if in_flight is None else [float("-inf")] * in_flight
        )
        """When each place that is free, or known to be free soon, is."""

    def advance(self, now_s: float) -> float:
        self._fill(-inf)
        while self.next_s <= now_s and self.next_s < inf:
            self._fill(max(self.next_s, self.now_s))
            self.go_on()
            self._fill(-inf)
        return self.next_s

    def _fill(self, until_s: float) -> None:
        """Has a request in the line that is seen after `until_s`, if there is one."""
        while not self.line or self.line[-1][0] <= until_s:
            if not self._send():
                break

    def _send(self) -> bool:
        """Sends the next request, if a place is known to become free for it."""
        if not self._load or (self._places is not None and not self._places):
            return False
        request = self._load.pop(0)
        if self._places is not None:
            request.send_s = max(request.arrival_s, heappop(self._places))
        self.send(request, request.send_s)
        return True

    def step_over(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        for place, request in enumerate((*batch.decodes, *batch.prefilled)):
            request.last_s = first_s + place * gap_s
            if request.first_s < 0:
                request.first_s = request.last_s
        for request in batch.ends:
            if self._places is not None:
                heappush(self._places, request.last_s + self._turnaround_s)
        self._fill(self.now_s)
