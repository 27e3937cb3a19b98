"""The bars of the console page: one for each choice of a request.

A bar has a number, a phase, its progress and its end. Observers report the requests that arrive
while a page is open; earlier ones are found in the engine. Each frame reads the progress from the
sequences, so that a token costs nothing. Start reading at `RequestBars`.
"""

import re
from array import array
from collections.abc import Callable
from collections.abc import Sequence as IdSequence
from contextlib import suppress
from functools import partial
from itertools import count
from operator import attrgetter
from sys import getsizeof

import msgspec
from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.batch import Phase, SequenceStatus
from app.core.engine.client import EngineClient
from app.core.engine.request import EngineRequest, SequenceOutcome, Watch
from app.core.engine.sequence import Sequence
from app.core.server.http.context import RequestContext
from app.extensions.console.frames import EndRow, Frame, NewBar, to_ms
from app.extensions.console.history import EndedRequest, LiveRequest, RecentEnds
from app.shared.client_names import client_name

MAX_ENDED_BYTES = 32 << 20
"""Memory for ended requests, whose details the page can get."""
BAR_BYTES = 900
"""Memory of an ended request without its prompt, its texts and its other fields; measured."""
PARSED_BYTES = 4
"""Memory of a value for each byte of its JSON, an upper estimate."""
MAX_PAST_BARS = 1000
"""Most ended requests that a new page gets."""
PAST_S = 300.0
"""Greatest age of ended requests that a new page gets."""
MAX_TEXT_CHARACTERS = 128
"""Most characters of a text that a client chooses, such as an id or a path."""
TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class Origin(Struct):
    """The HTTP request of a bar."""

    path: str = ""
    client: str = ""
    trace_id: str = ""
    choices: int = 0
    """Bars of the request so far."""

    @classmethod
    def from_context(cls, context: RequestContext) -> "Origin":
        """Takes the trace id from the client's `traceparent` header (W3C trace context)."""
        origin = cls(path=context.path[:MAX_TEXT_CHARACTERS], client=client_name(context))
        trace = TRACE_PARENT.match(context.headers.get("traceparent", ""))
        if trace is not None:
            origin.trace_id = trace[1]
        return origin


class Bar(Struct, gc=False, eq=False):
    """State of one choice as the page last received it."""

    number: int
    key: int
    """The `id()` of the request of the engine, which names the request in the log of delays."""
    request: EngineRequest
    """A copy of the fields that the page shows once the choice has ended."""
    origin: Origin
    sequence: Sequence | None = None
    """The sequence until it ends, once a frame has read it."""
    reply: str = ""
    """Text of an ended sequence that a frame has read, with thoughts and calls."""
    phase: int = 0
    since_ms: float = 0.0
    tokens: int = 0
    computed: int = 0
    held: int = 0
    preemptions: int = 0
    outcome: SequenceOutcome | None = None
    end: EndRow | None = None

    @property
    def end_ms(self) -> float:
        """Time of the end in milliseconds; 0 before."""
        if self.end is None:
            return 0.0
        return self.end[2]

    @property
    def size_bytes(self) -> int:
        """Memory of an ended bar."""
        request = self.request
        size_bytes = BAR_BYTES + getsizeof(request.prompt_ids) + getsizeof(self.reply)
        if self.outcome is not None:
            size_bytes += getsizeof(self.outcome.text)
        try:
            fields = msgspec.json.encode(request, enc_hook=_nothing)
        except RecursionError:  # a nested schema: too large to keep
            return MAX_ENDED_BYTES
        return size_bytes + PARSED_BYTES * len(fields)

    def slim(self) -> None:
        """Drops the parts of an ended choice that the page does not show.

        The reply and the observers of a request, such as its entry in the journal, would stay in
        memory for as long as the bar. A number of an array takes 4 bytes, and one of a list 40.
        """
        if self.sequence is not None:
            self.reply = self.sequence.text()
            self.sequence = None
        request = self.request
        self.request = replace(
            request,
            prompt_ids=_compact(request.prompt_ids),
            echo_text="",
            turns=(),
            form=None,
            media=(),
            delays=(),
            script=None,
            address=None,
            source=None,
            observers=(),
        )

    def row(self, began_s: float) -> NewBar:
        """Returns the row of a new bar."""
        request = self.request
        adapter = request.adapter
        if adapter is not None:
            adapter = adapter[:MAX_TEXT_CHARACTERS]
        return (
            self.number,
            request.request_id[:MAX_TEXT_CHARACTERS],
            request.index,
            len(request.prompt_ids),
            request.max_tokens,
            to_ms(request.arrival_s - began_s),
            adapter,
            self.origin.path,
            request.n,
        )


def _compact(ids: IdSequence[int]) -> IdSequence[int]:
    """Returns token ids as an array, with 4 bytes for each, if they fit."""
    try:
        return array("I", ids)
    except OverflowError:
        return ids


def _nothing(value: object) -> None:
    """Replaces values that JSON cannot express, such as arrays and compiled grammars."""


class EndedBars(LRUCache[int, Bar]):
    """Bars of ended requests by number, in the order of their ends, up to `MAX_ENDED_BYTES`."""

    def __init__(self) -> None:
        super().__init__(MAX_ENDED_BYTES, getsizeof=attrgetter("size_bytes"))
        self.dropped_ms = 0.0
        """Latest end of a bar that was dropped."""

    def popitem(self) -> tuple[int, Bar]:
        """Drops the oldest bar, and returns it with its number."""
        number, bar = super().popitem()
        self.dropped_ms = max(self.dropped_ms, bar.end_ms)
        return number, bar

    def recent(self, oldest_ms: float) -> tuple[list[Bar], float]:
        """Returns the last bars that ended at `oldest_ms` or later, at most `MAX_PAST_BARS`.

        The second value is a time in milliseconds: no bar that ended later is missing.
        """
        since_ms = self.dropped_ms
        bars = [bar for bar in self.values() if bar.end_ms >= oldest_ms]
        for bar in bars[:-MAX_PAST_BARS]:
            since_ms = max(since_ms, bar.end_ms)
        return bars[-MAX_PAST_BARS:], since_ms


class RequestBars:
    """The bars of one engine; `began_s` is time 0 of the page."""

    limit_bytes = MAX_ENDED_BYTES

    def __init__(self, engine: EngineClient, now: Callable[[], float], began_s: float) -> None:
        """`now` is the engine's clock."""
        self.refusals = 0
        self._engine = engine
        self._now = now
        self._began_s = began_s
        self._is_open = False
        self._counts_blocks = False
        self._live: dict[int, Bar] = {}
        """Bars by `id(request)`; each bar keeps its request alive."""
        self.recent_ends = RecentEnds()
        """Figures of ended requests, also of dropped bars."""
        self._past = EndedBars()
        """Ended requests, also those that ran while no page was open."""
        self._numbers = count(1)
        self._new: list[Bar] = []
        self._ended: list[Bar] = []
        self._wasted_waits_ms: list[float] = []
        """Waits of requests that left without a first token, since the last frame."""

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the ended requests."""
        return int(self._past.currsize)

    def start(self, counts_blocks: bool) -> None:
        """Starts to collect changes; with `counts_blocks` bars only have the number of blocks."""
        self._is_open = True
        self._counts_blocks = counts_blocks

    def stop(self) -> None:
        """Stops to collect changes."""
        self._is_open = False
        self._clear_changes()

    def _clear_changes(self) -> None:
        self._new = []
        self._ended = []
        self._wasted_waits_ms = []

    def watch(self, origin: Origin, request: EngineRequest) -> Watch:
        """Adds a bar for a submitted choice, and returns the receiver of its outcome."""
        bar = self._add(request, origin)
        self._live[id(request)] = bar
        return partial(self._finish, bar)

    def add_refused(self, context: RequestContext, origin: Origin, reason: str) -> None:
        """Adds a bar for a request that was answered with an error before its first choice."""
        self.refusals += 1
        request = EngineRequest(
            request_id=context.request_id[:MAX_TEXT_CHARACTERS],
            index=0,
            model="",
            prompt_ids=(),
            echo_text="",
            max_tokens=0,
            arrival_s=context.arrival_s,
        )
        bar = self._add(request, origin)
        reason = reason[:MAX_TEXT_CHARACTERS]
        self._end(bar, (bar.number, reason, self._ms(self._now()), 0, 0, None, None, None))

    def _add(self, request: EngineRequest, origin: Origin) -> Bar:
        origin.choices += 1
        bar = Bar(
            next(self._numbers),
            id(request),
            request=request,
            origin=origin,
            since_ms=self._ms(request.arrival_s),
        )
        if self._is_open:
            self._new.append(bar)
        return bar

    def _finish(self, bar: Bar, outcome: SequenceOutcome) -> None:
        self._live.pop(bar.key, None)
        bar.outcome = outcome
        bar.tokens = outcome.tokens
        end_ms = self._ms(outcome.ended_s)
        if self._is_open and outcome.first_token_s is None and outcome.reason == "abort":
            self._wasted_waits_ms.append(end_ms - self._ms(bar.request.arrival_s))
        row = (
            bar.number,
            outcome.reason,
            end_ms,
            outcome.tokens,
            outcome.cached_tokens,
            self._optional_ms(outcome.scheduled_s),
            self._optional_ms(outcome.first_token_s),
            self._optional_ms(outcome.last_token_s),
        )
        self._end(bar, row)

    def _end(self, bar: Bar, end: EndRow) -> None:
        bar.end = end
        request = bar.request
        arrival_ms = self._ms(request.arrival_s)
        self.recent_ends.add(EndedRequest(arrival_ms, len(request.prompt_ids), end))
        bar.slim()
        with suppress(ValueError):  # larger than the whole cache
            self._past[bar.number] = bar
        if self._is_open:
            self._ended.append(bar)

    def _ms(self, time_s: float) -> float:
        return to_ms(time_s - self._began_s)

    def _optional_ms(self, time_s: float | None) -> float | None:
        if time_s is None:
            return None
        return self._ms(time_s)

    def write_changes(self, frame: Frame) -> None:
        """Writes the changes since the last frame into `frame`."""
        for sequence in self._engine.sequences():
            bar = self._live.get(id(sequence.request))
            if bar is not None:
                bar.sequence = sequence
                self._write_progress(bar, sequence, frame)
        frame.new = [bar.row(self._began_s) for bar in self._new]
        frame.ended = [bar.end for bar in self._ended if bar.end is not None]
        for wait_ms in self._wasted_waits_ms:
            frame.ttft += (round(wait_ms * 10), 1)
        self._clear_changes()

    def _write_progress(self, bar: Bar, sequence: Sequence, frame: Frame) -> None:
        number = bar.number
        status = sequence.status()
        if sequence.tokens != bar.tokens:
            bar.tokens = sequence.tokens
            frame.tokens += (number, bar.tokens)
        phase = status.phase
        if phase == Phase.DECODE and status.first_s is None:
            phase = Phase.PREFILL  # the last step of its prompt is running
        if phase != bar.phase:
            self._write_phase(bar, phase, status=status, sequence=sequence, frame=frame)
        if status.computed != bar.computed:
            bar.computed = status.computed
            frame.computed += (number, bar.computed)
        if self._counts_blocks and status.held != bar.held:
            bar.held = status.held
            frame.held += (number, bar.held)

    def _write_phase(
        self, bar: Bar, phase: Phase, status: SequenceStatus, sequence: Sequence, frame: Frame
    ) -> None:
        """Writes a new phase, and any whole phase that fell between two frames."""
        scheduled_s = status.scheduled_s
        bar.preemptions = sequence.preemptions
        start_s: float | None = None
        if phase == Phase.DECODE:
            start_s = status.first_s
        elif phase == Phase.PREFILL and not bar.preemptions:
            start_s = scheduled_s
        start_ms = self._ms(self._now())
        if start_s is not None and self._ms(start_s) >= bar.since_ms:
            start_ms = self._ms(start_s)  # else the sequence continues after a preemption
        skipped = phase == Phase.DECODE and bar.phase == Phase.QUEUED
        if skipped and not bar.preemptions and scheduled_s is not None:
            skipped_phase = Phase.PREFILL
            if sequence.request.remote_prefill:
                skipped_phase = Phase.TRANSFER
            frame.phases.append((bar.number, int(skipped_phase), self._ms(scheduled_s), 0))
        bar.since_ms = start_ms
        bar.phase = int(phase)
        frame.phases.append((bar.number, bar.phase, bar.since_ms, bar.preemptions))

    def write_picture(self, frame: Frame) -> float:
        """Writes all live bars as of the last frame, and the recently ended ones, into `frame`.

        Returns a time in milliseconds: no bar that ended later is missing.
        """
        ended, since_ms = self._past.recent(frame.at - PAST_S * 1000)
        for bar in ended:
            if bar.end is not None:
                frame.new.append(bar.row(self._began_s))
                frame.ended.append(bar.end)
        for bar in self._live.values():
            frame.new.append(bar.row(self._began_s))
            first_s = None
            if bar.preemptions and bar.sequence is not None:
                first_s = bar.sequence.status().first_s
            if first_s is not None:
                frame.phases.append((bar.number, int(Phase.DECODE), self._ms(first_s), 0))
            frame.phases.append((bar.number, bar.phase, bar.since_ms, bar.preemptions))
            frame.tokens += (bar.number, bar.tokens)
            frame.computed += (bar.number, bar.computed)
            frame.held += (bar.number, bar.held)
        return since_ms

    def live_requests(self) -> list[LiveRequest]:
        """Returns the moments of the requests that wait or run, as of the last frame."""
        return [self._live_request(bar) for bar in self._live.values()]

    def _live_request(self, bar: Bar) -> LiveRequest:
        running_ms: float | None = None
        first_ms: float | None = None
        if bar.sequence is not None:
            status = bar.sequence.status()
            running_ms = self._optional_ms(status.scheduled_s)
            if bar.tokens:
                first_ms = self._optional_ms(status.first_s)
        request = bar.request
        return LiveRequest(
            arrival_ms=self._ms(request.arrival_s),
            prompt_tokens=len(request.prompt_ids),
            running_ms=running_ms,
            first_ms=first_ms,
            tokens=bar.tokens,
        )

    def live(self) -> list[Bar]:
        """Returns the bars of requests that wait or run."""
        return list(self._live.values())

    def number_of(self, key: int) -> int | None:
        """Returns the number of a live request's bar; `key` is its `id()`."""
        bar = self._live.get(key)
        if bar is None:
            return None
        return bar.number

    def find(self, number: int) -> Bar | None:
        """Returns the bar with this number, or None once it is forgotten."""
        for bar in self._live.values():
            if bar.number == number:
                return bar
        return self._past.get(number)

    def of_request(self, request_id: str) -> list[Bar]:
        """Returns the bars of a request, by its own id (`x`) or that of its answer (`cmpl-x`)."""
        # A completion appends the number of its prompt to the id.
        id_pattern = re.compile(rf"([a-z]+[-_])?{re.escape(request_id)}(-\d+)?")
        bars = [*self._past.values(), *self._live.values()]
        return [bar for bar in bars if id_pattern.fullmatch(bar.request.request_id)]
