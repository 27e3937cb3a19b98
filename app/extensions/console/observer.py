"""Observes an engine while a page is open, once a frame.

Without a page only the log of delays is attached; `RequestBars` records only the ends of requests.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from app.core.base.clock.pause import Pace
from app.core.base.metrics.recorder import Figures, LatencyTally
from app.core.base.metrics.table import FIRST_TOKEN, INTER_TOKEN
from app.core.engine.batch import LoRASlots, Phase
from app.core.engine.client import EngineClient
from app.core.engine.engine import Engine
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.kvcache.events import BlockRemoved, BlockStored, EventBatch, KVEvent
from app.core.engine.lifecycle import Operations
from app.core.engine.request import RequestMoments, unix_moment_s
from app.core.engine.sequence import Sequence
from app.core.engine.step_executor import StepExecutor
from app.extensions.console.bars import Bar, RequestBars
from app.extensions.console.block_map import BlockMap
from app.extensions.console.frames import FIGURES, EventRow, Frame, PastRow, Picture, StepRow, to_ms
from app.extensions.console.history import PAST_MS, History
from app.extensions.explanation.delays import DelayLog, Step
from app.extensions.explanation.explanation import Explanation, explain
from app.shared.event_hashes import unsigned64

if TYPE_CHECKING:
    from app.core.engine.kvcache.publisher import Publisher

MAX_EXPLAINED_CHOICES = 32
"""Most choices of a request that are explained; beam search has one for each beam and token."""
MAX_PAST_STEPS = 27_000
"""Most steps of a picture: as many as the page keeps."""
MAX_STEPS = 400
"""Most steps of a frame."""
MAX_CHUNK_NUMBERS = 2000
"""Most numbers in `Frame.chunks`."""
MAX_EVENTS = 100
"""Most KV events of a frame."""
MAX_MARKS = 200
"""Most marks on the time axis."""
MAX_MARK_CHARACTERS = 128
MAX_LATENCY_DIGITS = 4
"""Significant digits of latencies. Rounding keeps the number of distinct values small."""


class RequestReport(Struct):
    """Why a request was late; the sentence is that of its slowest choice, or the refusal."""

    request_id: str
    sentence: str
    choices: list[Explanation]
    arrived_s: float | None = None
    """Arrival, like all moments in Unix seconds; the journal has the same moments."""
    queued_s: float | None = None
    scheduled_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None


def no_load() -> Mapping[str, object] | None:
    """Returns the state of the load generator while there is none."""
    return None


@dataclass(frozen=True, slots=True)
class ObservedEngine:
    """An engine with its sources of information; `delays` records the engine."""

    engine: EngineClient
    lifecycle: Operations
    delays: DelayLog
    cache: KVCacheManager | None = None
    publisher: "Publisher | None" = None


class Observer:
    """Collects what pages show of an engine; receives its steps and events while a page is open."""

    def __init__(
        self, observed: ObservedEngine, now: Callable[[], float], unix: Callable[[], float]
    ) -> None:
        """`now` is the engine's clock, `unix` returns Unix seconds."""
        engine = observed.engine
        self._now = now
        self._unix = unix
        self._began_s = now()
        self._engine = engine
        self._lifecycle = observed.lifecycle
        self._lora: LoRASlots | None = None
        self.executor: StepExecutor | None = None
        """Runs the steps that sequences share; None for an engine without them."""
        if isinstance(engine, Engine):
            self._lora = engine.lora
            if isinstance(engine.executor, StepExecutor):
                self.executor = engine.executor
        self.bars = RequestBars(engine, now, self._began_s)
        self._map: BlockMap | None = None
        if observed.cache is not None:
            self._map = BlockMap(observed.cache)
        self._publisher = observed.publisher
        self.delays = observed.delays
        self._sent_steps = 0
        """Steps of the log that were in a frame, or ended before the page was opened."""
        self._events: deque[EventRow] = deque(maxlen=MAX_EVENTS)
        self._marks: deque[tuple[float, str, str]] = deque(maxlen=MAX_MARKS)
        self._last_figures: Figures | None = None
        self._last_frame_ms = 0.0
        self.load: Callable[[], Mapping[str, object] | None] = no_load
        """Returns the state of the load generator."""
        self.is_open = False

    def mark(self, kind: str, text: str) -> None:
        """Marks the present on the time axis, also for pages that are opened later."""
        self._marks.append((to_ms(self._now() - self._began_s), kind, text[:MAX_MARK_CHARACTERS]))

    def start(self) -> None:
        """Starts to observe the engine."""
        self.is_open = True
        recorder = self._engine.recorder
        recorder.fold()  # without the latencies of earlier tokens
        recorder.tally = LatencyTally()
        self.bars.start(counts_blocks=self._map is None and self.executor is not None)
        self._sent_steps = self.delays.steps_made
        if self._publisher is not None:
            self._publisher.listen(self._add_events)
        if self._map is not None:
            self._map.attach()

    def stop(self) -> None:
        """Stops to observe the engine."""
        self.is_open = False
        self._engine.recorder.tally = None
        if self._map is not None:
            self._map.detach()
        if self._publisher is not None:
            self._publisher.forget(self._add_events)
        self._events.clear()
        self.bars.stop()
        self._last_figures = None

    def _step_row(self, step: Step) -> StepRow:
        start_s = step.start_s - self._began_s
        start_ms = round(start_s * 1000, 2)
        duration_ms = round((step.end_s - step.start_s) * 1000, 3)
        return start_ms, duration_ms, step.prefill_tokens, step.decodes, step.sequences

    def _chunks_of(self, step: Step) -> Iterator[float]:
        """Yields number and end of each prompt that got a chunk in this step, but not its last."""
        for chunk in step.chunks:
            if chunk.is_last:
                continue
            number = self.bars.number_of(chunk.key)
            if number is not None:
                yield number
                yield to_ms(step.end_s - self._began_s)

    def explain(self, request_id: str) -> RequestReport | None:
        """Explains why a request took as long as it did; None if it is forgotten. May pause."""
        bars = self.bars.of_request(request_id)[:MAX_EXPLAINED_CHOICES]
        if not bars:
            return None
        live = {id(sequence.request): sequence for sequence in self._engine.sequences()}
        choices: list[Explanation] = []
        sentence = ""
        pause = Pace(self._now)
        for bar in bars:
            pause()
            choice = self.explain_choice(bar, live.get(bar.key))
            if choice is not None:
                choices.append(choice)
            elif bar.end is not None:
                sentence = f"Rejected with {bar.end[1]}"
        if choices:
            sentence = max(choices, key=attrgetter("total_ms")).sentence
        report = RequestReport(bars[0].request.request_id, sentence, choices)
        self._write_moments(report, bars)
        return report

    def _write_moments(self, report: RequestReport, bars: Iterable[Bar]) -> None:
        """Writes the first moments of all ended choices, and the last one, as in the journal."""
        offset_s = self._unix() - self._now()
        arrival_s = min(bar.request.arrival_s for bar in bars)
        report.arrived_s = unix_moment_s(arrival_s, offset_s)
        outcomes = [bar.outcome for bar in bars if bar.outcome is not None]
        if not outcomes:
            return
        moments = RequestMoments.of(outcomes, offset_s)
        report.queued_s = moments.queued_s
        report.scheduled_s = moments.scheduled_s
        report.first_s = moments.first_s
        report.last_s = moments.last_s
        report.preemptions = sum(outcome.preemptions for outcome in outcomes)
        report.cached_tokens = 0
        for bar in bars:
            if bar.outcome is not None and bar.request.index % bar.request.n == 0:
                report.cached_tokens += bar.outcome.cached_tokens  # choices share their prompt

    def explain_choice(self, bar: Bar, sequence: Sequence | None) -> Explanation | None:
        """Explains a choice, which is `sequence` while it waits or runs; None if it was refused."""
        outcome = bar.outcome
        if outcome is None and sequence is not None:
            status = "running"
            if sequence.scheduled_s is None:
                status = "waiting"
            outcome = sequence.outcome(status, self._now())
        if outcome is None:
            return None
        return explain(bar.request, outcome, self.delays, key=bar.key)

    def _write_steps(self, frame: Frame, figures: Figures) -> None:
        """Writes the new steps into `frame`.

        An engine without shared steps gets one that sums up all computed tokens.
        """
        start_ms = self._last_frame_ms
        self._last_frame_ms = frame.at
        last_figures = self._last_figures
        if self.executor is not None:
            steps = self.delays.recent(self._sent_steps)[-MAX_STEPS:]
            self._sent_steps = self.delays.steps_made
            frame.steps = [self._step_row(step) for step in steps]
            numbers = [number for step in steps for number in self._chunks_of(step)]
            frame.chunks = numbers[:MAX_CHUNK_NUMBERS]
        elif last_figures is not None:
            prompts = figures.prompt - figures.cached - last_figures.prompt + last_figures.cached
            decodes = int(figures.generated - last_figures.generated)
            if int(prompts) or decodes:
                duration_ms = round(frame.at - start_ms, 1)
                running = int(figures.running)
                frame.steps = [(start_ms, duration_ms, int(prompts), decodes, running)]

    def _add_events(self, topic: str, sequence: int, batch: EventBatch) -> None:
        self._events += [event_row(event, sequence) for event in batch.events[-MAX_EVENTS:]]

    @property
    def state(self) -> str:
        """The engine's state: sleeping, draining, paused or serving."""
        if self._lifecycle.is_sleeping:
            return "sleeping"
        if self._engine.withdrawn or self._engine.draining:
            return "draining"
        if self._lifecycle.paused:
            return "paused"
        return "serving"

    def summary(self) -> Mapping[str, object]:
        """Returns the engine's state and its figures by name."""
        figures = self._engine.recorder.figures()
        return {"state": self.state, **dict(zip(FIGURES, self._numbers(figures), strict=True))}

    def frame(self) -> Frame:
        """Returns the changes since the last frame. May pause."""
        figures = self._engine.recorder.figures()
        frame = self._head(figures)
        self.bars.write_changes(frame)
        if self._map is not None:
            self._write_blocks(self._map, frame)
        frame.marks = [mark for mark in self._marks if mark[0] >= self._last_frame_ms]
        self._write_steps(frame, figures)
        frame.events = list(self._events)
        self._events.clear()
        recorder = self._engine.recorder
        if recorder.tally is not None:
            frame.ttft += flat_pairs(recorder.tally.ttft)
            frame.itl = flat_pairs(recorder.tally.inter_token)
            recorder.tally = LatencyTally()
        self._last_figures = figures
        return frame

    def _write_blocks(self, block_map: BlockMap, frame: Frame) -> None:
        for number, phase, *_ in frame.phases:
            if phase == Phase.PREEMPTED:
                block_map.forget(number)
        for bar in self.bars.live():
            block_map.claim(bar, frame)
        for number, *_ in frame.ended:
            block_map.forget(number)
        block_map.write_changes(frame)

    def _head(self, figures: Figures) -> Frame:
        at_ms = to_ms(self._now() - self._began_s)
        adapters: dict[str, int] | None = None
        if self._lora is not None:
            adapters = {name: self._lora.running(name) for name in self._lora} or None
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
        past = self._past_figures()
        figures = self._last_figures or self._engine.recorder.figures()
        frame = self._head(figures)
        frame.steps = past_steps
        since_ms = self.bars.write_picture(frame)
        frame.marks = list(self._marks)
        if self._map is not None:
            self._map.write_picture(frame)
        return Picture(
            began=self._unix() - (self._now() - self._began_s),
            server=server,
            ttft_bounds=FIRST_TOKEN,
            itl_bounds=INTER_TOKEN,
            since=since_ms,
            past=past,
            frame=frame,
        )

    def _past_steps(self) -> list[StepRow]:
        """Returns the last steps, without those of the next frame. May pause."""
        if self.executor is None:
            return []
        unsent = self.delays.steps_made - self._sent_steps
        steps = self.delays.recent(self._sent_steps - MAX_PAST_STEPS)
        if unsent:
            del steps[-unsent:]
        pause = Pace(self._now)
        rows: list[StepRow] = []
        for step in steps:
            rows.append(self._step_row(step))
            pause()
        return rows

    def _past_figures(self) -> list[PastRow]:
        """Returns the figures of the last minutes, from the requests. May pause."""
        at_ms = to_ms(self._now() - self._began_s)
        figures = self._last_figures or self._engine.recorder.figures()
        ended, since_ms = self.bars.recent_ends.since(max(0.0, at_ms - PAST_MS))
        named = dict(zip(FIGURES, self._numbers(figures), strict=True))
        history = History(named, since_ms, at_ms)
        history.add(ended, self.bars.live_requests(), Pace(self._now))
        return history.rows()

    def _numbers(self, figures: Figures) -> list[float]:
        counts: dict[str, float] = {**figures.finished, "refused": self.bars.refusals}
        numbers: list[float] = []
        for name in FIGURES:
            numbers.append(getattr(figures, name, counts.get(name, 0.0)))
        return numbers


def event_row(event: KVEvent, message_number: int) -> EventRow:
    """Returns the row of an event of a published message."""
    if not isinstance(event, BlockStored | BlockRemoved):
        return "cleared", message_number, 0, 0, "", ""
    first_hash = ""
    if event.block_hashes:
        first_hash = _hex(event.block_hashes[0])
    blocks = len(event.block_hashes)
    if isinstance(event, BlockRemoved):
        return "removed", message_number, blocks, 0, first_hash, ""
    adapter = event.lora_name or ""
    return "stored", message_number, blocks, len(event.token_ids), first_hash, adapter


def _hex(block_hash: int | bytes) -> str:
    if isinstance(block_hash, int):
        return f"{unsigned64(block_hash):016x}"
    return block_hash.hex()[:16]


def flat_pairs(counts: Mapping[int, int]) -> list[int]:
    """Returns rounded values and their counts as one list."""
    rounded = Counter[int]()
    for value, count in counts.items():
        digits = max(0, len(str(value)) - MAX_LATENCY_DIGITS)
        rounded[round(value, -digits)] += count
    return [number for pair in rounded.items() for number in pair]
