"""The page's data: frames of changes, the bars of all choices, and the map of KV blocks.

The page gets a whole picture once, then a frame of changes four times a second. Both are JSON;
frequent rows have positions instead of names. Times are milliseconds of the server's clock since
the picture's `began`.

A bar is one choice of one request, named by its number: its phase, its progress, its end. Observers
report the requests that arrive while a page is open; earlier ones are found in the engine. Each
frame reads the progress from the sequences, so that a token costs nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count

from cachetools import LRUCache
from msgspec import Struct
from msgspec.json import Encoder

from app.engine.core.batch import Phase, SequenceStatus
from app.engine.core.client import EngineClient
from app.engine.core.request import EngineRequest, SequenceOutcome, Watch
from app.engine.core.sequence import Sequence
from app.engine.kvcache.block_pool import BlockObserver
from app.engine.kvcache.cache import KVCache
from app.serving.http.context import RequestContext, client_name

FIGURES = (
    "running", "waiting", "cache_usage", "preemptions", "generated", "prompt", "cached", "queries", "hits",
    "stop", "length", "abort", "error", "repetition", "refused",
)  # fmt: skip
"""Names of the numbers in `Frame.figures`; a finish reason names a count of requests.
`refused` counts those that were answered with an error before their first choice."""

NewBar = tuple[int, str, int, int, int, float, str | None, str, int]
"""Number, request id, choice, prompt tokens, max_tokens, arrival, adapter, path, n."""
PhaseRow = tuple[int, int, float, int]
"""Number, phase, its start, preemptions."""
EndRow = tuple[int, str, float, int, int, float | None, float | None, float | None]
"""Number, finish reason, end, tokens, cached tokens; times of the first schedule, first and last
token.
"""
StepRow = tuple[float, float, int, int, int] | tuple[float, float, int, int, int, int]
"""Start, duration, prefill tokens, decode tokens, sequences; in a simulated fleet also the pod."""
PodRow = tuple[int, int, float, float, str]
"""Running and waiting requests, used share of the KV cache, cached share of prompt tokens so far,
state.
"""
MarkRow = tuple[float, str, str]
"""Time, kind (`setting`, `fault`, `pause`, `load`, `scale`), what began."""
EventRow = tuple[str, int, int, int, str, str]
"""Kind, message number, blocks, tokens, hash of the first block, adapter."""


class Frame(Struct, kw_only=True, omit_defaults=True):
    """Changes since the last frame."""

    at: float
    state: str = "serving"
    figures: list[float] = []
    new: list[NewBar] = []
    phases: list[PhaseRow] = []
    tokens: list[int] = []
    """Pairs, flat: number, output tokens."""
    computed: list[int] = []
    """Pairs, flat: number, computed prompt tokens."""
    chunks: list[float] = []
    """Pairs, flat: number, time at which a prefill chunk that was not the last one ended."""
    held: list[int] = []
    """Pairs, flat: number, KV blocks."""
    ended: list[EndRow] = []
    steps: list[StepRow] = []
    pods: list[PodRow] = []
    """Pods of a simulated fleet."""
    blocks: list[int] = []
    """Triples, flat: block, state (`FREE` to `SHARED`), bar that took the block last."""
    firsts: list[int] = []
    """Pairs, flat: bar, its first block. Bars with the same first block share a prefix."""
    evicted: list[int] = []
    events: list[EventRow] = []
    ttft: list[int] = []
    """Pairs, flat: latency in tenths of a millisecond, how many first tokens came after it.

    Requests that left without a first token count with the time that they had waited.
    """
    itl: list[int] = []
    """Pairs, flat: gap in tenths of a millisecond, how many tokens came after it."""
    marks: list[MarkRow] = []
    adapters: dict[str, int] | None = None
    """Running requests by adapter, for adapters in memory."""
    load: Mapping[str, object] | None = None
    """State of the load generator."""


class Picture(Struct, kw_only=True):
    """Everything that a new page needs; frames continue from here."""

    version: int = 2
    began: float | None
    """Moment 0 in Unix seconds; None on virtual time."""
    server: Mapping[str, object]
    """Constants of the server: model, limits, ranks."""
    names: tuple[str, ...] = FIGURES
    ttft_bounds: Iterable[float]
    itl_bounds: Iterable[float]
    since: float = 0.0
    """Moment from which on `frame` has every request that has ended."""
    frame: Frame
    """The whole state, as one frame."""


_encode = Encoder().encode


def event_of(kind: str, item: Frame | Picture) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encode(item) + b"\n\n"


OVER_BYTES, BAR_BYTES, TOKEN_BYTES = 32 << 20, 2048, 60
"""Memory for ended requests whose details the page can get; estimates for a bar, and for one token.
"""
MOST_PAST, PAST_S = 1000, 300.0
"""Most ended requests that a new page gets, and their greatest age in seconds."""
MOST_CHARACTERS = 128
"""Most characters of a text that a client chooses: ids, paths."""
TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class Origin(Struct):
    path: str = ""
    client: str = ""
    trace_id: str = ""
    choices: int = 0
    """Bars of the request so far."""

    @classmethod
    def of(cls, context: RequestContext) -> "Origin":
        """Takes the trace id from the client's `traceparent` header (W3C trace context)."""
        trace = TRACE.match(context.headers.get("traceparent", ""))
        return cls(context.path[:MOST_CHARACTERS], client_name(context), trace[1] if trace else "")


class Bar(Struct, gc=False, eq=False):
    """State of one choice as the page last received it."""

    number: int
    request: EngineRequest
    origin: Origin
    sequence: Sequence | None = None
    phase: int = 0
    since_ms: float = 0.0
    tokens: int = 0
    computed: int = 0
    held: int = 0
    preemptions: int = 0
    outcome: SequenceOutcome | None = None
    end: EndRow | None = None

    @property
    def size_bytes(self) -> int:
        return BAR_BYTES + TOKEN_BYTES * (len(self.request.prompt_ids) + self.tokens)

    def row(self, began_s: float) -> NewBar:
        it = self.request
        arrival_ms = in_ms(it.arrival_s - began_s)
        return (
            self.number, it.request_id[:MOST_CHARACTERS], it.index, len(it.prompt_ids), it.max_tokens,
            arrival_ms, it.adapter and it.adapter[:MOST_CHARACTERS], self.origin.path, it.n,
        )  # fmt: skip


class EndedBars(LRUCache[int, Bar]):
    """Bars of ended requests by number, in the order of their ends, up to `OVER_BYTES`."""

    def __init__(self) -> None:
        super().__init__(OVER_BYTES, getsizeof=lambda bar: bar.size_bytes)
        self.forgotten_ms = 0.0
        """Latest end of a bar that was dropped."""

    def popitem(self) -> tuple[int, Bar]:
        number, bar = super().popitem()
        if bar.end is not None:
            self.forgotten_ms = max(self.forgotten_ms, bar.end[2])
        return number, bar

    def recent(self, oldest_ms: float) -> tuple[list[Bar], float]:
        """Returns the last bars that ended at `oldest_ms` or later, `MOST_PAST` at most.

        The second value is the moment, in milliseconds, from which on none is missing.
        """
        since_ms = self.forgotten_ms
        bars = [bar for bar in self.values() if bar.end is not None and bar.end[2] >= oldest_ms]
        for bar in bars[:-MOST_PAST]:
            if bar.end is not None:
                since_ms = max(since_ms, bar.end[2])
        return bars[-MOST_PAST:], since_ms


class RequestBars:
    """The bars of one engine; `began_s` is moment 0 of all times on the page."""

    limit_bytes = OVER_BYTES

    def __init__(self, engine: EngineClient, now: Callable[[], float], began_s: float) -> None:
        """`now` is the engine's clock."""
        self.refusals = 0
        self._left_ms: list[float] = []
        """Waits of requests that left without a first token, since the last frame."""
        self._engine, self._now, self._began_s = engine, now, began_s
        self._open = False
        self._live: dict[int, Bar] = {}
        """Bars by `id(request)`; each bar keeps its request alive."""
        self._over = EndedBars()
        """Ended requests, also those that ran while no page was open."""
        self._numbers = count(1)
        self._new: list[Bar] = []
        self._ended: list[Bar] = []
        self._counts_blocks = False

    @property
    def size_bytes(self) -> int:
        return int(self._over.currsize)

    def begin(self, counts_blocks: bool) -> None:
        """Starts to collect changes; with `counts_blocks` a bar has only the number of its blocks."""
        self._open, self._counts_blocks = True, counts_blocks

    def end(self) -> None:
        self._open = False
        self._new, self._ended, self._left_ms = [], [], []

    def watch(self, origin: Origin, request: EngineRequest) -> Watch:
        """Adds a bar for a submitted choice, and returns the receiver of its outcome."""
        bar = self._live[id(request)] = self._begun(request, origin)
        return partial(self._finish, bar)

    def refused(self, context: RequestContext, origin: Origin, reason: str) -> None:
        """Adds a bar for a request that was answered with an error before its first choice."""
        self.refusals += 1
        request = EngineRequest(
            request_id=context.request_id[:MOST_CHARACTERS], index=0, model="", prompt_ids=(), echo_text="",
            max_tokens=0, limited=False, arrival_s=context.arrival_s,
        )  # fmt: skip
        bar = self._begun(request, origin)
        self._end(
            bar,
            (bar.number, reason[:MOST_CHARACTERS], self._ms(self._now()), 0, 0, None, None, None),
        )

    def _begun(self, request: EngineRequest, origin: Origin) -> Bar:
        origin.choices += 1
        bar = Bar(next(self._numbers), request, origin, since_ms=self._ms(request.arrival_s))
        if self._open:
            self._new.append(bar)
        return bar

    def _finish(self, bar: Bar, outcome: SequenceOutcome) -> None:
        self._live.pop(id(bar.request), None)
        moments = (outcome.scheduled_s, outcome.first_token_s, outcome.last_token_s)
        running, first, last = (
            None if moment_s is None else self._ms(moment_s) for moment_s in moments
        )
        bar.outcome, bar.tokens = outcome, outcome.tokens
        end_ms, cached = self._ms(outcome.ended_s), outcome.cached_tokens
        if self._open and first is None and outcome.reason == "abort":
            self._left_ms.append(end_ms - self._ms(bar.request.arrival_s))
        self._end(
            bar, (bar.number, outcome.reason, end_ms, outcome.tokens, cached, running, first, last)
        )

    def _end(self, bar: Bar, end: EndRow) -> None:
        bar.end = end
        with suppress(ValueError):  # larger than all that is kept
            self._over[bar.number] = bar
        if self._open:
            self._ended.append(bar)

    def _ms(self, moment_s: float) -> float:
        return in_ms(moment_s - self._began_s)

    def changes(self, frame: Frame) -> None:
        """Writes the changes since the last frame into `frame`."""
        for sequence in self._engine.sequences():
            bar = self._live.get(id(sequence.request))
            if bar is not None:
                bar.sequence = sequence
                self._look(bar, sequence, frame)
        frame.new = [bar.row(self._began_s) for bar in self._new]
        frame.ended = [bar.end for bar in self._ended if bar.end is not None]
        for left_ms in self._left_ms:
            frame.ttft += (round(left_ms * 10), 1)
        self._new, self._ended, self._left_ms = [], [], []

    def _look(self, bar: Bar, sequence: Sequence, frame: Frame) -> None:
        number, status = bar.number, sequence.status()
        if sequence.tokens != bar.tokens:
            bar.tokens = sequence.tokens
            frame.tokens += (number, bar.tokens)
        if status.phase != bar.phase:
            self._turn(bar, status, sequence, frame)
        if status.computed != bar.computed:
            bar.computed = status.computed
            frame.computed += (number, bar.computed)
        if self._counts_blocks and status.held != bar.held:
            bar.held = status.held
            frame.held += (number, bar.held)

    def _turn(self, bar: Bar, status: SequenceStatus, sequence: Sequence, frame: Frame) -> None:
        """Writes the change to another phase, and any whole phase that fell between two frames."""
        number, running_s = bar.number, status.scheduled_s
        bar.preemptions = sequence.preemptions
        begun_s = status.first_s if status.phase == Phase.DECODE else None
        if not bar.preemptions and status.phase == Phase.PREFILL:
            begun_s = running_s
        if begun_s is not None and self._ms(begun_s) < bar.since_ms:
            begun_s = None  # goes on after a preemption
        skipped = status.phase == Phase.DECODE and bar.phase == Phase.QUEUED
        if skipped and not bar.preemptions and running_s is not None:
            before = Phase.TRANSFER if sequence.request.remote_prefill else Phase.PREFILL
            frame.phases.append((number, int(before), self._ms(running_s), 0))
        bar.since_ms = self._ms(self._now() if begun_s is None else begun_s)
        bar.phase = int(status.phase)
        frame.phases.append((number, bar.phase, bar.since_ms, bar.preemptions))

    def picture(self, frame: Frame) -> float:
        """Writes into `frame` all live bars as the last frame left them, and the recently ended
        ones.

        Returns the moment, in milliseconds, from which on no ended bar is missing.
        """
        ended, since_ms = self._over.recent(frame.at - PAST_S * 1000)
        for bar in ended:
            if bar.end is not None:
                frame.new.append(bar.row(self._began_s))
                frame.ended.append(bar.end)
        for bar in self._live.values():
            frame.new.append(bar.row(self._began_s))
            first_s = None if bar.sequence is None else bar.sequence.status().first_s
            if bar.preemptions and first_s is not None:
                frame.phases.append((bar.number, int(Phase.DECODE), self._ms(first_s), 0))
            frame.phases.append((bar.number, bar.phase, bar.since_ms, bar.preemptions))
            frame.tokens += (bar.number, bar.tokens)
            frame.computed += (bar.number, bar.computed)
            frame.held += (bar.number, bar.held)
        return since_ms

    def live(self) -> list[Bar]:
        return list(self._live.values())

    def number_of(self, key: int) -> int | None:
        """Returns the number of a live request's bar; `key` is its `id()`."""
        bar = self._live.get(key)
        return None if bar is None else bar.number

    def of(self, number: int) -> Bar | None:
        """Returns the bar with this number; None once it is forgotten."""
        over = self._over.get(number)
        return over or next((bar for bar in self._live.values() if bar.number == number), None)

    def named(self, request_id: str) -> list[Bar]:
        """Returns the known bars of a request, by the id of its answer (`cmpl-x`) or by its own
        (`x`).
        """
        # A completion has the number of its prompt behind the id.
        is_own = re.compile(rf"([a-z]+[-_])?{re.escape(request_id)}(-\d+)?").fullmatch
        bars = [*self._over.values(), *self._live.values()]
        return [it for it in bars if is_own(it.request.request_id)]


def in_ms(seconds: float) -> float:
    return round(seconds * 10_000) / 10


FREE, CACHED, HELD, SHARED = range(4)
"""States of a block: empty; unused but cached; used by one sequence; used by several."""
FINDABLE = -1
MOST_BLOCKS = 1 << 16
"""Blocks on the map: higher numbers are left out. The pool takes low numbers first."""


class BlockMap(BlockObserver):
    """Observes the blocks of a cache while a page is open."""

    def __init__(self, cache: KVCache) -> None:
        self._cache, self._pool = cache, cache.pool
        self.end()

    def begin(self) -> None:
        """Observes the cache from now on, and reads the state of each block."""
        self._pool.observers.append(self)
        held = [block for sequence in self._cache.running for block in sequence.blocks]
        for block in (*self._pool.free_blocks(), *held):
            self._set(block.number, block.references or (FINDABLE if block.hash else 0))

    def end(self) -> None:
        if self in self._pool.observers:
            self._pool.observers.remove(self)
        self._uses: dict[int, int] = {}
        """Sequences that use a block; FINDABLE if there are none and the block is cached."""
        self._owners: dict[int, int] = {}
        """Last bar that took a block."""
        self._own: dict[int, list[int]] = {}
        """Blocks of each bar that were written already."""
        self._dirty: set[int] = set()
        self._evicted: list[int] = []

    # Calls from the pool.

    def allocated(self, block: int) -> None:
        self._set(block, 1)

    def accessed(self, block: int) -> None:
        self._set(block, max(0, self._uses.get(block, 0)) + 1)

    def released(self, block: int, findable: bool) -> None:
        self._set(block, max(0, self._uses.get(block, 1) - 1) or (FINDABLE if findable else 0))

    def evicted(self, block: int) -> None:
        if self._uses.get(block) == FINDABLE:
            self._evicted.append(block)

    def cleared(self) -> None:
        for block in [block for block, uses in self._uses.items() if uses == FINDABLE]:
            self._set(block, 0)

    def _set(self, block: int, uses: int) -> None:
        if block < MOST_BLOCKS:
            self._uses[block] = uses
            self._dirty.add(block)

    # Output for the page.

    def claim(self, bar: Bar, frame: Frame) -> None:
        """Marks the blocks that a bar got since the last frame as the bar's."""
        if bar.sequence is None:
            return
        own = self._own.setdefault(bar.number, [])
        new = bar.sequence.block_numbers(len(own))
        if new and not own:
            frame.firsts += (bar.number, new[0])
        own += new
        self._owners |= dict.fromkeys(new, bar.number)
        self._dirty.update(new)

    def forget(self, bar: int) -> None:
        """Forgets the blocks of a bar that ended or lost them; marks stay until another bar gets a
        block.
        """
        self._own.pop(bar, None)

    def changes(self, frame: Frame) -> None:
        dirty, self._dirty = self._dirty, set()
        frame.blocks = self._rows(dirty)
        frame.evicted, self._evicted = self._evicted, []

    def picture(self, frame: Frame) -> None:
        """Writes all blocks that were ever used into `frame`."""
        frame.blocks = self._rows(self._uses)
        for bar, own in self._own.items():
            if own:
                frame.firsts += (bar, own[0])

    def _rows(self, blocks: Iterable[int]) -> list[int]:
        rows: list[int] = []
        for block in blocks:
            uses = self._uses.get(block, 0)
            state = SHARED if uses > 1 else HELD if uses else FREE
            rows += (block, CACHED if uses == FINDABLE else state, self._owners.get(block, 0))
        return rows
