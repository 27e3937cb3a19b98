"""Observes an engine while a page is open, once a frame.

Without a page only the log of delays is attached; `RequestBars` notes only the ends of requests.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from app.base.clock.pause import Pace
from app.base.metrics.recorder import Figures, LatencyTally
from app.base.metrics.table import FIRST_TOKEN, INTER_TOKEN
from app.console.bars import (
    FIGURES,
    Bar,
    BlockMap,
    EventRow,
    Frame,
    Picture,
    RequestBars,
    StepRow,
    in_ms,
)
from app.engine.core.batch import Phase
from app.engine.core.client import EngineClient
from app.engine.core.delays import DelayLog, Step
from app.engine.core.engine import Engine
from app.engine.core.explanation import Explanation, explain
from app.engine.core.lifecycle import Operations
from app.engine.core.sequence import Sequence
from app.engine.core.step_executor import StepExecutor
from app.engine.kvcache.cache import KVCacheManager
from app.engine.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent

if TYPE_CHECKING:
    from app.engine.kvcache.publisher import Publisher


class RequestReport(Struct):
    """Why a request was late; the sentence is that of its slowest choice, or the refusal."""

    request_id: str
    sentence: str
    choices: list[Explanation]


MOST_CHOICES = 32
"""Most choices of a request that are explained; beam search has one for each beam and token."""
MOST_PAST_STEPS = 6000
"""Most steps of a picture: as many as the page keeps."""
MOST_STEPS, MOST_CHUNKS, MOST_EVENTS, MOST_MARKS, MOST_MARK = 400, 2000, 100, 200, 128
"""Most steps, numbers in `chunks`, and KV events of a frame; most marks in all, and characters of
one.
"""


def row_of(event: KVEvent, sequence: int) -> EventRow:
    """Returns an event of the message numbered `sequence`."""
    if not isinstance(event, BlockStored | BlockRemoved):
        return "cleared", sequence, 0, 0, "", ""
    hashes = [
        f"{it % (1 << 64):016x}" if isinstance(it, int) else it.hex()
        for it in event.block_hashes[:1]
    ]
    first, blocks = "".join(hashes)[:16], len(event.block_hashes)
    if isinstance(event, BlockRemoved):
        return "removed", sequence, blocks, 0, first, ""
    return "stored", sequence, blocks, len(event.token_ids), first, event.lora_name or ""


class Observer:
    """Everything that the pages are told of an engine; receives its steps and events while a page
    is open.
    """

    def __init__(
        self,
        engine: EngineClient,
        lifecycle: Operations,
        now: Callable[[], float],
        unix: Callable[[], float],
        delays: DelayLog,
        cache: KVCacheManager | None = None,
        publisher: "Publisher | None" = None,
    ) -> None:
        """`now` is the engine's clock, `unix` returns Unix seconds; `delays` records the engine."""
        self._began_s, self._unix = now(), unix
        self._now = now
        self._engine, self._lifecycle = engine, lifecycle
        self._lora = engine.lora if isinstance(engine, Engine) else None
        executor = engine.executor if isinstance(engine, Engine) else None
        self.executor = executor if isinstance(executor, StepExecutor) else None
        """Runs the steps that sequences share; None for an engine without them."""
        self.bars = RequestBars(engine, now, self._began_s)
        self._map = None if cache is None else BlockMap(cache)
        self._publisher = publisher
        self.delays = delays
        self._steps_told = 0
        """Steps of the log that are over or were in a frame."""
        self._events: deque[EventRow] = deque(maxlen=MOST_EVENTS)
        self._marks: deque[tuple[float, str, str]] = deque(maxlen=MOST_MARKS)
        self._last: Figures | None = None
        self._last_ms = 0.0
        self.load: Callable[[], Mapping[str, object] | None] = lambda: None
        """Returns the state of the load generator."""
        self.is_open = False

    def mark(self, kind: str, text: str) -> None:
        """Marks this moment on the time axis, also for pages that are opened later."""
        self._marks.append((in_ms(self._now() - self._began_s), kind, text[:MOST_MARK]))

    def begin(self) -> None:
        self.is_open = True
        recorder = self._engine.recorder
        recorder.fold()  # without the latencies of before
        recorder.tally = LatencyTally()
        self.bars.begin(counts_blocks=self._map is None and self.executor is not None)
        self._steps_told = self.delays.steps_made
        if self._publisher is not None:
            self._publisher.listen(self._take_events)
        if self._map is not None:
            self._map.begin()

    def end(self) -> None:
        self.is_open = False
        self._engine.recorder.tally = None
        if self._map is not None:
            self._map.end()
        if self._publisher is not None:
            self._publisher.forget(self._take_events)
        self._events.clear()
        self.bars.end()
        self._last = None

    def _row_of(self, it: Step) -> StepRow:
        begin_ms = round((it.start_s - self._began_s) * 1000, 2)
        took_ms = round((it.end_s - it.start_s) * 1000, 3)
        return begin_ms, took_ms, it.prefill_tokens, it.decodes, it.sequences

    def _chunks_of(self, step: Step) -> Iterator[float]:
        """Yields number and end of the prompts that got a chunk in this step, but not the last one."""
        for chunk in step.chunks:
            number = None if chunk.is_last else self.bars.number_of(chunk.key)
            if number is not None:
                yield from (number, in_ms(step.end_s - self._began_s))

    def explain(self, request_id: str) -> RequestReport | None:
        """Explains why a request took as long as it did; None if it is not known any more.

        May pause.
        """
        bars = self.bars.named(request_id)[:MOST_CHOICES]
        if not bars:
            return None
        live = {id(it.request): it for it in self._engine.sequences()}
        choices, sentence, rest = [], "", Pace(self._now)
        for bar in bars:
            rest()
            choice = self.explain_choice(bar, live.get(id(bar.request)))
            if choice is not None:
                choices.append(choice)
            elif bar.end is not None:
                sentence = f"Refused with {bar.end[1]}"
        if choices:
            sentence = max(choices, key=lambda it: it.total_ms).sentence
        return RequestReport(bars[0].request.request_id, sentence, choices)

    def explain_choice(self, bar: Bar, sequence: Sequence | None) -> Explanation | None:
        """Explains a choice, which is `sequence` while it waits or runs; None if it was refused."""
        outcome = bar.outcome
        if outcome is None and sequence is not None:
            status = "waiting" if sequence.scheduled_s is None else "running"
            outcome = sequence.outcome(status, self._now())
        return None if outcome is None else explain(bar.request, outcome, self.delays)

    def _tell_steps(self, frame: Frame, figures: Figures, last: Figures | None) -> None:
        """Writes the steps into `frame`; without shared steps, one that sums up all computed
        tokens.
        """
        begin_ms, self._last_ms = self._last_ms, frame.at
        if self.executor is not None:
            new = self.delays.recent(self._steps_told)[-MOST_STEPS:]
            self._steps_told = self.delays.steps_made
            frame.steps = [self._row_of(step) for step in new]
            frame.chunks = [number for step in new for number in self._chunks_of(step)][
                :MOST_CHUNKS
            ]
        elif last is not None:
            prompts = int(figures.prompt - figures.cached - last.prompt + last.cached)
            decodes = int(figures.generated - last.generated)
            if prompts or decodes:
                took_ms = round(frame.at - begin_ms, 1)
                frame.steps = [(begin_ms, took_ms, prompts, decodes, int(figures.running))]

    def _take_events(self, topic: str, sequence: int, batch: EventBatch) -> None:
        self._events += [row_of(event, sequence) for event in batch.events[-MOST_EVENTS:]]

    @property
    def state(self) -> str:
        if self._lifecycle.is_sleeping:
            return "sleeping"
        if self._engine.withdrawn or self._engine.draining:
            return "draining"
        return "paused" if self._lifecycle.paused else "serving"

    def summary(self) -> Mapping[str, object]:
        figures = self._engine.recorder.figures()
        return {"state": self.state, **dict(zip(FIGURES, self._numbers(figures), strict=True))}

    def frame(self) -> Frame:
        """Returns the changes since the last frame. May pause."""
        figures, last = self._engine.recorder.figures(), self._last
        frame = self._head(figures)
        self.bars.changes(frame)
        if self._map is not None:
            for row in frame.phases:
                if row[1] == Phase.PREEMPTED:
                    self._map.forget(row[0])
            for bar in self.bars.live():
                self._map.claim(bar, frame)
            for ended in frame.ended:
                self._map.forget(ended[0])
            self._map.changes(frame)
        frame.marks = [mark for mark in self._marks if mark[0] >= self._last_ms]
        self._tell_steps(frame, figures, last)
        frame.events = list(self._events)
        self._events.clear()
        recorder = self._engine.recorder
        if recorder.tally is not None:
            frame.ttft += pairs_of(recorder.tally.ttft)
            frame.itl = pairs_of(recorder.tally.inter_token)
            recorder.tally = LatencyTally()
        self._last = figures
        return frame

    def _head(self, figures: Figures) -> Frame:
        at_ms = in_ms(self._now() - self._began_s)
        lora = self._lora
        adapters = None if lora is None else {name: lora.running(name) for name in lora} or None
        return Frame(
            at=at_ms,
            state=self.state,
            figures=self._numbers(figures),
            adapters=adapters,
            load=self.load(),
        )

    def picture(self, server: Mapping[str, object]) -> Picture:
        """Returns the whole state as of the last frame. May pause.

        `server` goes into the picture unchanged.
        """
        past_steps = self._past_steps()
        figures = self._last or self._engine.recorder.figures()
        frame = self._head(figures)
        frame.steps = past_steps
        since_ms = self.bars.picture(frame)
        frame.marks = list(self._marks)
        if self._map is not None:
            self._map.picture(frame)
        return Picture(
            began=self._unix() - (self._now() - self._began_s),
            server=server,
            ttft_bounds=FIRST_TOKEN,
            itl_bounds=INTER_TOKEN,
            since=since_ms,
            frame=frame,
        )

    def _past_steps(self) -> list[StepRow]:
        """Returns the last steps that were in a frame or ended before the page was opened.

        May pause.
        """
        if self.executor is None:
            return []
        untold = self.delays.steps_made - self._steps_told
        steps = self.delays.recent(self._steps_told - MOST_PAST_STEPS)
        if untold:
            del steps[-untold:]
        pause = Pace(self._now)
        rows: list[StepRow] = []
        for step in steps:
            rows.append(self._row_of(step))
            pause()
        return rows

    def _numbers(self, figures: Figures) -> list[float]:
        counts = {**figures.finished, "refused": self.bars.refusals}
        return [
            counts.get(name, 0.0) if (value := getattr(figures, name, None)) is None else value
            for name in FIGURES
        ]


def pairs_of(counts: Mapping[int, int]) -> list[int]:
    """Returns values and their counts, flat.

    Values have four digits at most, so that pairs stay few.
    """
    rounded = Counter[int]()
    for value, count in counts.items():
        digits = max(0, len(str(value)) - 4)
        rounded[round(value, -digits)] += count
    return [number for pair in rounded.items() for number in pair]
