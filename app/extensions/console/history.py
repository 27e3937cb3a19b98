"""Figures of the time before a page was opened, computed from requests when a page is opened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from app.extensions.console.frames import FIGURES, EndRow, PastRow

STEP_MS = 500.0
"""Interval between two rows."""
PAST_MS = 300_000.0
"""Greatest age of requests that count."""
MAX_REQUESTS = 50_000
"""Most ended requests that are kept."""
REQUEST_BYTES = 280
"""Memory of an ended request; measured."""


class EndedRequest(NamedTuple):
    """The moments and tokens of a choice that has ended; times are milliseconds."""

    arrival_ms: float
    prompt_tokens: int
    end: EndRow


class LiveRequest(NamedTuple):
    """A choice that waits or runs; times are milliseconds, None for one that is yet to come."""

    arrival_ms: float
    prompt_tokens: int
    running_ms: float | None
    first_ms: float | None
    tokens: int


class RecentEnds:
    """The choices that ended in the last five minutes, without their texts, in order."""

    limit_bytes = MAX_REQUESTS * REQUEST_BYTES

    def __init__(self) -> None:
        self._ended: deque[EndedRequest] = deque()
        self._dropped_ms = 0.0
        """End of the last request that was dropped."""

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        return len(self._ended) * REQUEST_BYTES

    def add(self, ended: EndedRequest) -> None:
        """Keeps a request, and drops old ones."""
        requests = self._ended
        requests.append(ended)
        oldest_ms = ended.end[2] - PAST_MS
        while len(requests) > MAX_REQUESTS or requests[0].end[2] < oldest_ms:
            self._dropped_ms = requests.popleft().end[2]

    def since(self, oldest_ms: float) -> tuple[list[EndedRequest], float]:
        """Returns the requests that ended at `oldest_ms` or later, as far as known.

        The second value is the time in milliseconds from which on no request is missing.
        """
        since_ms = max(oldest_ms, self._dropped_ms)
        return [request for request in self._ended if request.end[2] >= since_ms], since_ms


class History:
    """Rows of figures from `from_ms` to `to_ms`, by subtracting what requests did later."""

    def __init__(self, figures: Mapping[str, float], from_ms: float, to_ms: float) -> None:
        """`figures` belong to `to_ms`."""
        self._figures = figures
        count = max(0, ceil((to_ms - from_ms) / STEP_MS) - 1)
        self._first_ms = to_ms - count * STEP_MS
        self._count = count
        self._running = [0] * (count + 1)
        self._waiting = [0] * (count + 1)
        self._later = {name: [0] * (count + 1) for name in FIGURES}

    def _row(self, at_ms: float) -> int:
        """Returns the number of the first row at this time or later."""
        return max(0, min(self._count, ceil((at_ms - self._first_ms) / STEP_MS)))

    def add(
        self, ended: Iterable[EndedRequest], live: Iterable[LiveRequest], pause: Callable[[], None]
    ) -> None:
        """Counts requests. Calls `pause` after each one."""
        for live_request in live:
            self._add_live(live_request)
            pause()
        for request in ended:
            self._add_ended(request)
            pause()

    def _add_ended(self, request: EndedRequest) -> None:
        _, reason, end_ms, tokens, cached_tokens, running_ms, first_ms, last_ms = request.end
        if reason.startswith("status"):
            self._later["refused"][self._row(end_ms)] += 1
            return
        if reason in self._later:
            self._later[reason][self._row(end_ms)] += 1
        self._add_lookup(running_ms, request.prompt_tokens, cached_tokens)
        if running_ms is None:
            running_ms = end_ms
        self._span(self._waiting, request.arrival_ms, running_ms)
        self._span(self._running, running_ms, end_ms)
        if first_ms is not None:
            self._later["prompt"][self._row(first_ms)] += request.prompt_tokens
            self._later["cached"][self._row(first_ms)] += cached_tokens
            self._add_tokens(tokens, first_ms, last_ms)

    def _add_live(self, request: LiveRequest) -> None:
        """Counts a request that waits or runs; its tokens are counted until the last row."""
        self._span(self._waiting, request.arrival_ms, request.running_ms)
        self._span(self._running, request.running_ms, None)
        self._add_lookup(request.running_ms, request.prompt_tokens, 0)
        if request.first_ms is not None:
            self._later["prompt"][self._row(request.first_ms)] += request.prompt_tokens
            self._add_tokens(request.tokens, request.first_ms, None)

    def _add_lookup(self, running_ms: float | None, prompt_tokens: int, hits: int) -> None:
        """Counts the lookup of a prompt in the prefix cache, at the start of the request."""
        if running_ms is not None:
            row = self._row(running_ms)
            self._later["queries"][row] += prompt_tokens
            self._later["hits"][row] += hits

    def _span(self, counts: list[int], start_ms: float | None, end_ms: float | None) -> None:
        """Counts a request from its start to its end; None for a time that is yet to come."""
        if start_ms is None:
            return
        counts[self._row(start_ms)] += 1
        if end_ms is not None:
            counts[self._row(end_ms)] -= 1

    def _add_tokens(self, tokens: int, first_ms: float, last_ms: float | None) -> None:
        """Counts the tokens evenly from the first to the last one."""
        generated = self._later["generated"]
        if last_ms is None:
            last_ms = self._first_ms + self._count * STEP_MS
        gap_ms = max(last_ms - first_ms, 0.001) / max(1, tokens - 1)
        counted = 0
        for row in range(self._row(first_ms), self._row(last_ms) + 1):
            at_ms = self._first_ms + row * STEP_MS
            written = min(tokens, 1 + int((at_ms - first_ms) / gap_ms))
            if row == self._count or at_ms >= last_ms:
                written = tokens
            generated[row] += written - counted
            counted = written

    def rows(self) -> list[PastRow]:
        """Returns time and figures, in order; the use of the KV cache is not kept."""
        waiting = list(accumulate(self._waiting))
        running = list(accumulate(self._running))
        later: dict[str, list[int]] = {}
        for name, counts in self._later.items():
            later[name] = list(accumulate(reversed(counts)))[::-1]
        rows: list[PastRow] = []
        for number in range(self._count):
            row: PastRow = [self._first_ms + number * STEP_MS]
            for name in FIGURES:
                value: float | None = max(0.0, self._figures[name] - later[name][number + 1])
                if name == "cache_usage":
                    value = None
                elif name == "running":
                    value = running[number]
                elif name == "waiting":
                    value = waiting[number]
                row.append(value)
            rows.append(row)
        return rows
