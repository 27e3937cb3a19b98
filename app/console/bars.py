"""Every choice of every request as a bar: its phase, its progress, its end; and the map of KV blocks.

Observers report the requests that arrive while a page is open; earlier ones are found in the engine.
Each frame reads the progress from the sequences, so that a token costs nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count

from cachetools import LRUCache
from msgspec import Struct

from app.console.frames import EndRow, Frame, NewBar
from app.engine.core.batch import Phase, SequenceStatus
from app.engine.core.client import EngineClient
from app.engine.core.request import EngineRequest, SequenceOutcome, Watch
from app.engine.core.sequence import Sequence
from app.engine.kvcache.block_pool import BlockObserver
from app.engine.kvcache.cache import KVCache
from app.serving.http.context import RequestContext, client_name

MOST_NEW = 500
"""Most new bars of a frame; a request beyond them that still runs gets its bar in a later frame."""
OVER_BYTES = 8 << 20
"""Memory for ended requests whose details the page can still get."""
BAR_BYTES, TOKEN_BYTES = 2048, 60
"""Estimated memory of a bar without tokens, and of one token."""
MOST_PAST, PAST_S = 1000, 300.0
"""Most finished requests that a new page gets, and their greatest age in seconds."""
MOST_CHARACTERS = 128
"""Most characters of a text that a client chooses: ids, paths."""
TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class Origin(Struct, frozen=True):
    path: str = ""
    client: str = ""
    trace_id: str = ""

    @classmethod
    def of(cls, context: RequestContext) -> Origin:
        """Takes the trace id from the client's `traceparent` header (W3C trace context)."""
        trace = TRACE.match(context.headers.get("traceparent", ""))
        return cls(context.path[:MOST_CHARACTERS], client_name(context), trace[1] if trace else "")


class Bar(Struct, gc=False, eq=False):
    """State of one choice as the page last received it."""

    number: int
    request: EngineRequest
    origin: Origin
    sequence: Sequence | None = None
    watched: bool = False
    """True when an observer will report the end."""
    phase: int = 0
    since_ms: float = 0.0
    tokens: int = 0
    computed: int = 0
    held: int = 0
    preemptions: int = 0
    outcome: SequenceOutcome | None = None

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        return BAR_BYTES + TOKEN_BYTES * (len(self.request.prompt_ids) + self.tokens)

    def row(self, began_s: float) -> NewBar:
        """Returns the row that begins this bar in a frame."""
        it = self.request
        arrival_ms = in_ms(it.arrival_s - began_s)
        return (
            self.number, it.request_id[:MOST_CHARACTERS], it.index, len(it.prompt_ids), it.max_tokens,
            arrival_ms, it.adapter and it.adapter[:MOST_CHARACTERS], self.origin.path, it.n,
        )  # fmt: skip


class RequestBars:
    """The bars of one engine; `began_s` is moment 0 of all times on the page."""

    limit_bytes = OVER_BYTES

    def __init__(self, engine: EngineClient, now: Callable[[], float], began_s: float) -> None:
        """`now` is the engine's clock."""
        self._engine = engine
        self._now = now
        self._began_s = began_s
        self._open = False
        self._live: dict[int, Bar] = {}
        """Bars by `id(request)`; each bar keeps its request alive."""
        self._over: LRUCache[int, Bar] = LRUCache(OVER_BYTES, getsizeof=lambda bar: bar.size_bytes)
        self._numbers = count(1)
        self._unseen = 0
        self._new: list[Bar] = []
        self._ended: list[EndRow] = []
        self._past: deque[tuple[NewBar, EndRow]] = deque(maxlen=MOST_PAST)
        """Latest ended requests, also those that ran while no page was open."""
        self._counts_blocks = False
        self._skipped = False
        """True when a frame had no room for a sequence, which still needs a bar."""

    @property
    def size_bytes(self) -> int:
        """Memory of the ended requests."""
        return int(self._over.currsize)

    def begin(self, counts_blocks: bool) -> None:
        """Starts to follow requests, for the first open page.

        With `counts_blocks`, for blocks without numbers, a bar has only the number of its blocks.
        """
        self._open, self._counts_blocks = True, counts_blocks

    def end(self) -> None:
        """Stops following requests when the last page closes.

        Numbers continue, so that an old page does not confuse two bars.
        """
        self._open = False
        for kept in (self._live, self._over, self._new, self._ended):
            kept.clear()
        self._unseen = 0

    def watch(self, origin: Origin, request: EngineRequest) -> Watch | None:
        """Adds a bar for a submitted choice, and returns the receiver of its outcome."""
        bar = self._begun(request, origin)
        if bar is None:
            return None
        bar.watched = True
        return partial(self._finish, bar)

    def refused(self, context: RequestContext, status: int) -> None:
        """Adds a bar for a request that never reached the engine."""
        request = EngineRequest(
            request_id=context.request_id[:MOST_CHARACTERS], index=0, model="", prompt_ids=(), echo_text="",
            max_tokens=0, limited=False, arrival_s=context.arrival_s,
        )  # fmt: skip
        bar = self._begun(request, Origin.of(context))
        if bar is None:
            return
        if self._live.pop(id(request), None) is not None:
            self._over[bar.number] = bar
        self._note_end(bar, (bar.number, f"status {status}", self._ms(self._now()), 0, 0, None, None, None))

    def _begun(self, request: EngineRequest, origin: Origin) -> Bar | None:
        """Returns the bar of a new request; None where a page is open and the frame has no room for it."""
        if self._open and len(self._new) >= MOST_NEW:
            self._unseen += 1
            return None
        bar = Bar(next(self._numbers), request, origin, since_ms=self._ms(request.arrival_s))
        if self._open:
            self._live[id(request)] = bar
            self._new.append(bar)
        return bar

    def _finish(self, bar: Bar, outcome: SequenceOutcome) -> None:
        live = self._live.pop(id(bar.request), None)
        moments = (outcome.scheduled_s, outcome.first_token_s, outcome.last_token_s)
        running, first, last = (None if moment_s is None else self._ms(moment_s) for moment_s in moments)
        end_ms, cached = self._ms(outcome.ended_s), outcome.cached_tokens
        number = (live or bar).number
        end = number, outcome.reason, end_ms, outcome.tokens, cached, running, first, last
        if live is None:  # no page has this bar
            self._past.append((bar.row(self._began_s), end))
            return
        live.outcome, live.tokens = outcome, outcome.tokens
        self._over[number] = live
        self._note_end(live, end)

    def _note_end(self, bar: Bar, end: EndRow) -> None:
        self._past.append((bar.row(self._began_s), end))
        if self._open:
            self._ended.append(end)

    def _ms(self, moment_s: float) -> float:
        return in_ms(moment_s - self._began_s)

    def changes(self, frame: Frame) -> None:
        """Writes the changes since the last frame into `frame`."""
        self._place()
        for bar in list(self._live.values()):
            sequence = bar.sequence
            if sequence is None:
                continue
            if not sequence.over:
                self._look(bar, sequence, frame)
            elif not bar.watched:  # it ended since the last frame
                now_s, status = self._now(), sequence.status()
                outcome = SequenceOutcome(
                    reason="over",
                    scheduled_s=status.scheduled_s,
                    first_token_s=status.first_s,
                    last_token_s=now_s,
                    ended_s=now_s,
                    cached_tokens=0,
                    tokens=sequence.tokens,
                )
                self._finish(bar, outcome)
        new, self._new = self._new, []
        frame.new = [bar.row(self._began_s) for bar in new]
        frame.ended, self._ended = self._ended, []
        frame.unseen, self._unseen = self._unseen, 0

    def _place(self) -> None:
        """Finds the sequences of new bars, and begins bars for sequences that were submitted while no page
        was open.

        The engine lists the latest sequences first: after a known one all others are known.
        """
        fresh: list[Sequence] = []
        for sequence in self._engine.sequences():
            bar = self._live.get(id(sequence.request))
            if bar is None or bar.sequence is None:
                fresh.append(sequence)
            elif not self._skipped:
                break
        self._skipped = False
        unseen = self._unseen
        for sequence in reversed(fresh):
            if sequence.over:
                continue
            bar = self._live.get(id(sequence.request)) or self._begun(sequence.request, Origin())
            if bar is None:
                self._skipped = True
            else:
                bar.sequence = sequence
        self._unseen = unseen

    def _look(self, bar: Bar, sequence: Sequence, frame: Frame) -> None:
        number, tokens = bar.number, sequence.tokens
        if tokens != bar.tokens:
            bar.tokens = tokens
            frame.tokens += (number, tokens)
            if bar.phase == Phase.DECODE and not self._counts_blocks:
                return
        status = sequence.status()
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
        begun_s = None
        if not bar.preemptions:
            begun_s = {Phase.PREFILL: running_s, Phase.DECODE: status.first_s}.get(status.phase)
            if status.phase == Phase.DECODE and bar.phase == Phase.QUEUED and running_s is not None:
                before = Phase.TRANSFER if sequence.request.remote_prefill else Phase.PREFILL
                frame.phases.append((number, int(before), self._ms(running_s), 0))
        bar.since_ms = self._ms(self._now() if begun_s is None else begun_s)
        bar.phase = int(status.phase)
        frame.phases.append((number, bar.phase, bar.since_ms, bar.preemptions))

    def picture(self, frame: Frame) -> None:
        """Writes into `frame` all live bars as the last frame left them, and the recently ended ones."""
        oldest_ms, to_come = frame.at - PAST_S * 1000, {end[0] for end in self._ended}
        for row, end in self._past:
            if end[2] >= oldest_ms and end[0] not in to_come:
                frame.new.append(row)
                frame.ended.append(end)
        for bar in self._live.values():
            frame.new.append(bar.row(self._began_s))
            frame.phases.append((bar.number, bar.phase, bar.since_ms, bar.preemptions))
            for pairs, value in (
                (frame.tokens, bar.tokens),
                (frame.computed, bar.computed),
                (frame.held, bar.held),
            ):
                if value:
                    pairs += (bar.number, value)

    def live(self) -> list[Bar]:
        """Returns the bars of requests that have not ended."""
        return list(self._live.values())

    def number_of(self, request: EngineRequest) -> int | None:
        bar = self._live.get(id(request))
        return None if bar is None else bar.number

    def of(self, number: int) -> Bar | None:
        """Returns the bar with this number; None once it is forgotten."""
        over = self._over.get(number)
        return over or next((bar for bar in self._live.values() if bar.number == number), None)


def in_ms(seconds: float) -> float:
    return round(seconds * 10_000) / 10


FREE, CACHED, HELD, SHARED = range(4)
"""States of a block: empty; unused but cached; used by one sequence; used by several."""
MOST_BLOCKS = 1 << 16
"""Blocks on the map: higher numbers are left out. The pool takes low numbers first."""


class BlockMap(BlockObserver):
    """Observes the blocks of a cache while a page is open."""

    def __init__(self, cache: KVCache) -> None:
        self._cache, self._pool = cache, cache.pool
        self._uses: dict[int, int] = {}
        self._states: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._held: dict[int, int] = {}
        """Number of blocks already marked as the bar's, by bar."""
        self._dirty: set[int] = set()
        self._evicted: list[int] = []
        self._firsts: dict[int, int] = {}
        """First block of each bar."""

    def begin(self) -> None:
        """Observes the cache from now on, and reads the state of each block."""
        self._pool.observers.append(self)
        held = [block for sequence in self._cache.running for block in sequence.blocks]
        for block in (*self._pool.free_blocks(), *held):
            if block.number < MOST_BLOCKS:
                self._set(block.number, block.references, CACHED if block.hash else FREE)

    def end(self) -> None:
        if self in self._pool.observers:
            self._pool.observers.remove(self)
        for kept in (self._uses, self._states, self._owners, self._held, self._firsts):
            kept.clear()
        self._dirty.clear()
        self._evicted.clear()

    # Calls from the pool.

    def allocated(self, block: int) -> None:
        self._set(block, 1)

    def accessed(self, block: int) -> None:
        self._set(block, self._uses.get(block, 0) + 1)

    def released(self, block: int, findable: bool) -> None:
        self._set(block, max(0, self._uses.get(block, 1) - 1), CACHED if findable else FREE)

    def evicted(self, block: int) -> None:
        if self._states.get(block) == CACHED:
            self._evicted.append(block)

    def cleared(self) -> None:
        for block, state in list(self._states.items()):
            if state == CACHED:
                self._set(block, 0)

    def _set(self, block: int, uses: int, unused: int = FREE) -> None:
        """Notes how many sequences use a block; `unused` is its state when none does."""
        if block < MOST_BLOCKS:
            self._uses[block] = uses
            self._states[block] = SHARED if uses > 1 else HELD if uses else unused
            self._dirty.add(block)

    # Output for the page.

    def claim(self, bar: Bar, frame: Frame) -> None:
        """Marks the blocks that a bar got since the last frame as the bar's."""
        if bar.sequence is None:
            return
        known = self._held.get(bar.number, 0)
        new = bar.sequence.block_numbers(known)
        if new:
            if not known:
                self._firsts[bar.number] = new[0]
                frame.firsts += (bar.number, new[0])
            self._held[bar.number] = known + len(new)
            for block in new:
                if block < MOST_BLOCKS:
                    self._owners[block] = bar.number
                    self._dirty.add(block)

    def forget(self, bar: int) -> None:
        """Forgets the blocks of a bar that ended or lost them; marks stay until another bar gets a block."""
        self._held.pop(bar, None)
        self._firsts.pop(bar, None)

    def changes(self, frame: Frame) -> None:
        """Writes the changes since the last frame into `frame`."""
        dirty, self._dirty = self._dirty, set()
        frame.blocks = self._rows(dirty)
        frame.evicted, self._evicted = self._evicted, []

    def picture(self, frame: Frame) -> None:
        """Writes all blocks that were ever used into `frame`."""
        frame.blocks = self._rows(self._states)
        frame.firsts = [value for pair in self._firsts.items() for value in pair]

    def _rows(self, blocks: set[int] | dict[int, int]) -> list[int]:
        states, owners = self._states, self._owners
        return [value for block in blocks for value in (block, states.get(block, FREE), owners.get(block, 0))]
