"""Figures of the time before a page was opened, from the requests that the server has kept."""

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from math import ceil

from app.extensions.console.bars import Bar
from app.extensions.console.frames import FIGURES, PastRow, to_ms

STEP_MS = 500.0
"""Interval between two rows."""


class History:
    """Rows of figures from `from_ms` to `to_ms`, by subtracting what requests did later."""

    def __init__(
        self, figures: Mapping[str, float], from_ms: float, to_ms: float, began_s: float
    ) -> None:
        """`figures` belong to `to_ms`; `began_s` is time 0."""
        self._began_s = began_s
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

    def add(self, bars: Iterable[Bar], pause: Callable[[], None]) -> None:
        """Counts requests. Calls `pause` after each."""
        for bar in bars:
            self._add(bar)
            pause()

    def _add(self, bar: Bar) -> None:
        arrival_ms = to_ms(bar.request.arrival_s - self._began_s)
        if bar.end is None:
            self._add_live(bar, arrival_ms)
            return
        _, reason, end_ms, _, _, running_ms, first_ms, last_ms = bar.end
        if reason.startswith("status"):
            self._later["refused"][self._row(end_ms)] += 1
            return
        if reason in self._later:
            self._later[reason][self._row(end_ms)] += 1
        if running_ms is None:
            running_ms = end_ms
        self._span(self._waiting, arrival_ms, running_ms)
        self._span(self._running, running_ms, end_ms)
        self._add_lookup(bar, bar.end[5], bar.end[4])
        self._add_tokens(bar, first_ms, last_ms)

    def _add_live(self, bar: Bar, arrival_ms: float) -> None:
        running_ms: float | None = None
        first_ms: float | None = None
        if bar.sequence is not None:
            status = bar.sequence.status()
            if status.scheduled_s is not None:
                running_ms = to_ms(status.scheduled_s - self._began_s)
            if status.first_s is not None and bar.tokens:
                first_ms = to_ms(status.first_s - self._began_s)
        self._span(self._waiting, arrival_ms, running_ms)
        self._span(self._running, running_ms, None)
        self._add_lookup(bar, running_ms, 0)
        self._add_tokens(bar, first_ms, None)

    def _add_lookup(self, bar: Bar, running_ms: float | None, hits: int) -> None:
        """Counts the lookup of a prompt in the prefix cache, at the start of the request."""
        if running_ms is not None:
            row = self._row(running_ms)
            self._later["queries"][row] += len(bar.request.prompt_ids)
            self._later["hits"][row] += hits

    def _span(self, counts: list[int], start_ms: float | None, end_ms: float | None) -> None:
        """Counts a request from its start to its end; None for a time that is yet to come."""
        if start_ms is None:
            return
        counts[self._row(start_ms)] += 1
        if end_ms is not None:
            counts[self._row(end_ms)] -= 1

    def _add_tokens(self, bar: Bar, first_ms: float | None, last_ms: float | None) -> None:
        """Counts the prompt at the first token, and the tokens evenly until the last one."""
        if first_ms is None:
            return
        later = self._later
        first_row = self._row(first_ms)
        later["prompt"][first_row] += len(bar.request.prompt_ids)
        if bar.end is not None:
            later["cached"][first_row] += bar.end[4]
        generated = later["generated"]
        if last_ms is None:
            last_ms = self._first_ms + self._count * STEP_MS
        gap_ms = max(last_ms - first_ms, 0.001) / max(1, bar.tokens - 1)
        counted = 0
        for row in range(first_row, self._row(last_ms) + 1):
            at_ms = self._first_ms + row * STEP_MS
            written = min(bar.tokens, 1 + int((at_ms - first_ms) / gap_ms))
            if row == self._count or at_ms >= last_ms:
                written = bar.tokens
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
