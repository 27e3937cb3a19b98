"""A client and an engine in their simplest form: what `Simulation` and `Pod` are compared with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from app.engine.batch import Batch
from app.fidelity.pod import OfflineRequest
from config.profile import FrontCosts
from tests.engine.loops import Moments


class Client:
    """Sends what `load` holds, in order of arrival, with at most `in_flight` requests at a time.

    A place is free again `turnaround_s` after the last token of the request that had it. Requests reach the
    scheduler in order: one that it does not see yet holds back those behind it (rule 1).
    """

    def __init__(
        self,
        load: Sequence[OfflineRequest],
        front: FrontCosts,
        in_flight: int | None = None,
        turnaround_s: float = 0.0,
    ) -> None:
        self._load = load
        self._front = front
        self._turnaround_s = turnaround_s
        self._next = 0
        self._places: list[float] | None = None if in_flight is None else [float("-inf")] * in_flight
        """When each place that is free, or known to be free soon, is."""
        self._line: deque[tuple[float, OfflineRequest]] = deque()
        self._seen_s = float("-inf")

    def next_s(self) -> float | None:
        if not self._line:
            self._send()
        return self._line[0][0] if self._line else None

    def take(self, until_s: float) -> list[OfflineRequest]:
        taken: list[OfflineRequest] = []
        line = self._line
        while True:
            if not line:
                self._send()
            if not line or line[0][0] > until_s:
                return taken
            taken.append(line.popleft()[1])

    def left(self, last_s: float) -> None:
        """A request had its last token at `last_s`."""
        if self._places is not None:
            heappush(self._places, last_s + self._turnaround_s)

    def _send(self) -> None:
        """Send the next request, if a place is known to become free for it."""
        if self._next == len(self._load) or (self._places is not None and not self._places):
            return
        request = self._load[self._next]
        self._next += 1
        if self._places is not None:
            request.send_s = max(request.arrival_s, heappop(self._places))
        self._seen_s = max(self._seen_s, self._front.visible_s(request.send_s, request.prompt_tokens))
        self._line.append((self._seen_s, request))


class MomentRecorder(Moments):
    """Tells the client of what has ended, too."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def step_over(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        super().step_over(batch, first_s, gap_s)
        for request in batch.ends:
            self._client.left(request.last_s)
