"""Observes an engine while a page is open, once a frame.

Without a page nothing is attached to the engine; `RequestBars` notes only the ends of requests.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from app.base.metrics.recorder import Figures
from app.console.bars import FIGURES, BlockMap, EventRow, Frame, Picture, RequestBars, StepRow, in_ms
from app.engine.core.batch import Batch, Phase
from app.engine.core.engine import Engine
from app.engine.core.lifecycle import Operations
from app.engine.core.sequence import EngineClient
from app.engine.core.step_loop import StepExecutor, SteppedSequence
from app.engine.kvcache.cache import KVCacheManager
from app.engine.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent

if TYPE_CHECKING:
    from app.engine.kvcache.publisher import Publisher


MOST_STEPS, MOST_CHUNKS, MOST_EVENTS = 400, 2000, 100
"""Most steps, numbers in `chunks`, and KV events of a frame; older steps and events are dropped."""


def row_of(event: KVEvent, sequence: int) -> EventRow:
    """Returns an event of the message numbered `sequence`."""
    if not isinstance(event, BlockStored | BlockRemoved):
        return "cleared", sequence, 0, 0, "", ""
    hashes = [f"{it % (1 << 64):016x}" if isinstance(it, int) else it.hex() for it in event.block_hashes[:1]]
    first, blocks = "".join(hashes)[:16], len(event.block_hashes)
    if isinstance(event, BlockRemoved):
        return "removed", sequence, blocks, 0, first, ""
    return "stored", sequence, blocks, len(event.token_ids), first, event.lora_name or ""


class Observer:
    """Everything that the pages are told of an engine; receives its steps and events while a page is open."""

    def __init__(
        self,
        engine: EngineClient,
        lifecycle: Operations,
        now: Callable[[], float],
        unix: Callable[[], float],
        cache: KVCacheManager | None = None,
        publisher: "Publisher | None" = None,
    ) -> None:
        """`now` is the engine's clock, `unix` returns Unix seconds."""
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
        self._steps: deque[StepRow] = deque(maxlen=MOST_STEPS)
        self._chunks: list[float] = []
        self._computed: dict[SteppedSequence, int] = {}
        """Computed tokens of prompts in prefill."""
        self._events: deque[EventRow] = deque(maxlen=MOST_EVENTS)
        self._last: Figures | None = None
        self._last_ms = 0.0
        self.load: Callable[[], Mapping[str, object] | None] = lambda: None
        """Returns the state of the load generator."""
        self.is_open = False

    def begin(self) -> None:
        self.is_open = True
        self.bars.begin(counts_blocks=self._map is None and self.executor is not None)
        if self.executor is not None:
            self.executor.watch_step = self._take_step
        if self._publisher is not None:
            self._publisher.listen(self._take_events)
        if self._map is not None:
            self._map.begin()

    def end(self) -> None:
        self.is_open = False
        if self._map is not None:
            self._map.end()
        if self._publisher is not None:
            self._publisher.forget(self._take_events)
        if self.executor is not None:
            self.executor.watch_step = None
        for kept in (self._events, self._steps, self._chunks, self._computed):
            kept.clear()
        self.bars.end()
        self._last = None

    def _take_step(self, batch: Batch[SteppedSequence], start_s: float, end_s: float) -> None:
        decodes = len(batch.decodes) + sum(drafted for drafted, _ in batch.drafts.values())
        begin_ms, took_ms = round((start_s - self._began_s) * 1000, 2), round((end_s - start_s) * 1000, 3)
        self._steps.append((begin_ms, took_ms, batch.tokens - decodes, decodes, batch.sequences))
        if self.executor is None:
            return
        # Of prompts in prefill, those that got a chunk in this step, but not the last one.
        prefilling = {state: state.computed for state in self.executor.scheduler.prefilling}
        before, self._computed = self._computed, prefilling
        for state, computed in prefilling.items():
            if computed != before.get(state) and not state.over and len(self._chunks) < MOST_CHUNKS:
                number = self.bars.number_of(state.request)
                self._chunks += () if number is None else (number, round(begin_ms + took_ms, 1))

    def _tell_steps(self, frame: Frame, figures: Figures, last: Figures | None) -> None:
        """Writes the steps into `frame`; without shared steps, one that sums up all computed tokens."""
        begin_ms, self._last_ms = self._last_ms, frame.at
        if self.executor is not None:
            frame.steps = list(self._steps)
            self._steps.clear()
            frame.chunks, self._chunks = self._chunks, []
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
        if self._engine.draining:
            return "draining"
        return "paused" if self._lifecycle.paused else "serving"

    def summary(self) -> Mapping[str, object]:
        figures = self._engine.recorder.figures()
        return {"state": self.state, **dict(zip(FIGURES, numbers_of(figures), strict=True))}

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
        self._tell_steps(frame, figures, last)
        frame.events = list(self._events)
        self._events.clear()
        if last is None or last.ttft != figures.ttft:
            frame.ttft = list(figures.ttft.counts)
        if last is None or last.inter_token != figures.inter_token:
            frame.itl = list(figures.inter_token.counts)
        self._last = figures
        return frame

    def _head(self, figures: Figures) -> Frame:
        at_ms = in_ms(self._now() - self._began_s)
        lora = self._lora
        adapters = None if lora is None else {name: lora.running(name) for name in lora} or None
        return Frame(
            at=at_ms, state=self.state, figures=numbers_of(figures), adapters=adapters, load=self.load()
        )

    def picture(self, server: Mapping[str, object]) -> Picture:
        """Returns the whole state as of the last frame; `server` goes into the picture unchanged."""
        figures = self._last or self._engine.recorder.figures()
        frame = self._head(figures)
        self.bars.picture(frame)
        if self._map is not None:
            self._map.picture(frame)
        frame.ttft, frame.itl = list(figures.ttft.counts), list(figures.inter_token.counts)
        return Picture(
            began=self._unix() - (self._now() - self._began_s),
            server=server,
            ttft_bounds=figures.ttft.bounds,
            itl_bounds=figures.inter_token.bounds,
            frame=frame,
        )


def numbers_of(figures: Figures) -> list[float]:
    return [
        figures.finished.get(name, 0.0) if (value := getattr(figures, name, None)) is None else value
        for name in FIGURES
    ]
