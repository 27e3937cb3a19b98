"""Frames of a recorded simulation for the console page, made after the run."""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from app.core.base.metrics.recorder import LatencyTally
from app.extensions.console.frames import FIGURES, Frame
from workbench.engine.steps import Phase
from workbench.load.pod_lives import Life
from workbench.runs.simulation import SimulationOutcome
from workbench.runs.step_recorder import StepRecorder
from workbench.runs.token_gaps import LoggedGaps

MIN_FRAME_S = 0.25
MIN_FRAMES = 60
MAX_FRAMES = 1200
MAX_ROWS = 300_000
"""Most rows of a film. A row is the growth of one bar in one frame, for each request in flight."""
MAX_LANES = 32
"""Most pods whose steps the page shows."""

Handler = Callable[[int, Frame], None]
"""Receives the number of a request when one of its events is due, and the frame of the event."""


@dataclass(slots=True)
class PodFigures:
    """State of one pod at a time."""

    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    prompt_tokens: int = 0
    """Tokens of the admitted prompts."""
    cached_tokens: int = 0
    """Cached tokens of the admitted prompts."""


class EventQueue:
    """Events of one kind, one for each request, in order of time."""

    def __init__(self, times_s: Sequence[float], *handlers: Handler) -> None:
        self._times_s = times_s
        self._handlers = handlers
        self._order = deque(sorted(range(len(times_s)), key=times_s.__getitem__))

    def handle_until(self, until_s: float, frame: Frame) -> None:
        """Handles the events up to `until_s`."""
        while self._order and self._times_s[self._order[0]] <= until_s:
            number = self._order.popleft()
            for handle in self._handlers:
                handle(number, frame)


def life_state(life: Life, now_s: float) -> str:
    """Returns the state of a pod as text."""
    if now_s < life.begun_s:
        return "not there yet"
    if life.drain_s < inf and now_s >= life.gone_s:
        return "gone"
    if now_s < life.ready_s:
        return "loading"
    return "ready" if now_s < life.drain_s else "draining"


class FrameMaker:
    """Makes the frames of one run."""

    def __init__(self, outcome: SimulationOutcome, recorder: StepRecorder) -> None:
        self._load = outcome.load
        self._limits = outcome.plan.profile.engine
        self._outcome = outcome
        self._recorder = recorder
        self._begin_s = min(outcome.send_s)
        self._pods = [PodFigures() for _ in range(outcome.pods)]
        self._prefill_pod = outcome.pod
        """Pod of each request that computes its prompt."""
        if outcome.transfers is not None:
            self._prefill_pod = outcome.transfers.prefill_pod
        self._decoding: dict[int, None] = {}
        """Requests between their first and their last token."""
        self._finished_tokens = 0
        """Output tokens of finished requests."""
        self._figures = dict.fromkeys(FIGURES, 0.0)
        self._events = self._make_events()
        self._steps = deque(self._pod_steps())
        self._launches = deque(
            sorted(
                (life.begun_s, pod)
                for pod, life in enumerate(outcome.lives)
                if life.begun_s > self._begin_s
            )
        )
        self._chunks = deque(sorted(recorder.chunks))
        self._preempted_s = sorted(recorder.preempted_s)
        self._gaps: deque[tuple[float, float, int]] = deque()
        """Gaps between tokens, by their ends."""
        if isinstance(outcome.gaps, LoggedGaps):
            self._gaps.extend(sorted(outcome.gaps.log))

    def frames(self) -> Iterator[Frame]:
        """Yields the frames in order of time."""
        for frame_s in self._frame_times():
            frame = Frame(at=self._ms(frame_s))
            for events in self._events:
                events.handle_until(frame_s, frame)
            self._write_progress(frame, frame_s)
            self._write_steps(frame, frame_s)
            self._write_gaps(frame, frame_s)
            while self._launches and self._launches[0][0] <= frame_s:
                begun_s, pod = self._launches.popleft()
                frame.marks.append((self._ms(begun_s), "scale", f"pod {pod} begins to load"))
            while self._chunks and self._chunks[0][0] <= frame_s:
                end_s, number = self._chunks.popleft()
                frame.chunks += (number + 1, self._ms(end_s))
            self._figures["preemptions"] = bisect_right(self._preempted_s, frame_s)
            self._write_pods(frame, frame_s)
            frame.figures = [round(self._figures[name], 5) for name in FIGURES]
            yield frame

    def _frame_times(self) -> Iterator[float]:
        """Yields the times of the frames: enough to see a run, few enough for a small file."""
        outcome = self._outcome
        length_s = max(max(outcome.last_s) - self._begin_s, 1e-3)
        length_s *= 1 + 1e-9  # the last frame has the last token
        request_s = sum(
            last - send for send, last in zip(outcome.send_s, outcome.last_s, strict=True)
        )
        bar_s = request_s / self._recorder.requests_per_bar
        count = min(MAX_FRAMES, length_s / MIN_FRAME_S, MAX_ROWS * length_s / max(bar_s, 1e-9))
        count = max(MIN_FRAMES, int(count))
        for index in range(count):
            yield self._begin_s + length_s * (index + 1) / count

    def _ms(self, time_s: float) -> float:
        return round((time_s - self._begin_s) * 1000, 1)

    def _has_bar(self, number: int) -> bool:
        return number % self._recorder.requests_per_bar == 0

    def _make_events(self) -> list[EventQueue]:
        """Returns the kinds of events in their order at the same time."""
        outcome = self._outcome
        log = outcome.transfers
        enter_prefill = partial(self._move, self._prefill_pod, 1, 0)
        start_prefill = partial(self._move, self._prefill_pod, -1, 1)
        finish_decode = partial(self._move, outcome.pod, 0, -1)
        events = [
            EventQueue(outcome.send_s, self._send, enter_prefill),
            EventQueue(self._recorder.admitted_s, self._admit, start_prefill),
        ]
        if log is not None:
            finish_prefill = partial(self._move, self._prefill_pod, 0, -1)
            events += [
                EventQueue(log.prefilled_s, self._start_transfer, finish_prefill),
                EventQueue(log.seen_s, partial(self._move, outcome.pod, 1, 0)),
                EventQueue(log.begin_s, partial(self._move, outcome.pod, -1, 1)),
            ]
        events += [
            EventQueue(outcome.first_s, self._start_decode),
            EventQueue(outcome.last_s, self._finish, finish_decode),
        ]
        return events

    def _move(
        self, pods: Sequence[int], waiting: int, running: int, number: int, frame: Frame
    ) -> None:
        """Changes the waiting and running requests of the request's pod."""
        pod = self._pods[pods[number]]
        pod.waiting += waiting
        pod.running += running

    def _send(self, number: int, frame: Frame) -> None:
        if not self._has_bar(number):
            return
        path = ""
        if len(self._pods) > 1:
            pods = dict.fromkeys((self._prefill_pod[number], self._outcome.pod[number]))
            path = f"pod {', then '.join(map(str, pods))}"
        frame.new.append(
            (
                number + 1,
                f"#{number + 1}",
                0,
                self._load.input_tokens[number],
                self._load.output_tokens[number],
                self._ms(self._outcome.send_s[number]),
                None,
                path,
                1,
            )
        )

    def _admit(self, number: int, frame: Frame) -> None:
        tokens = self._load.input_tokens[number]
        cached_tokens = self._recorder.cached_tokens[number]
        pod = self._pods[self._prefill_pod[number]]
        pod.prompt_tokens += tokens
        pod.cached_tokens += cached_tokens
        self._figures["cached"] += cached_tokens
        if self._load.group or self._load.session:  # else no prompts share anything
            self._figures["queries"] += tokens
            self._figures["hits"] += cached_tokens
        if self._has_bar(number):
            admitted_ms = self._ms(self._recorder.admitted_s[number])
            frame.phases.append((number + 1, int(Phase.PREFILL), admitted_ms, 0))
            frame.held += (number + 1, self._new_blocks(number, tokens))

    def _start_transfer(self, number: int, frame: Frame) -> None:
        assert self._outcome.transfers is not None
        if self._has_bar(number):
            prefilled_ms = self._ms(self._outcome.transfers.prefilled_s[number])
            frame.phases.append((number + 1, int(Phase.TRANSFER), prefilled_ms, 0))

    def _start_decode(self, number: int, frame: Frame) -> None:
        tokens = self._load.input_tokens[number]
        first_s = self._outcome.first_s[number]
        self._decoding[number] = None
        self._figures["prompt"] += tokens
        ttft_s = first_s - self._outcome.send_s[number]
        frame.ttft += (round(ttft_s * LatencyTally.PER_S), 1)
        if self._has_bar(number):
            frame.phases.append((number + 1, int(Phase.DECODE), self._ms(first_s), 0))
            frame.computed += (number + 1, tokens)

    def _finish(self, number: int, frame: Frame) -> None:
        tokens = self._load.output_tokens[number]
        first_s = self._outcome.first_s[number]
        last_s = self._outcome.last_s[number]
        del self._decoding[number]
        self._figures["length"] += 1
        self._finished_tokens += tokens
        if self._has_bar(number):
            frame.ended.append(
                (
                    number + 1,
                    "length",
                    self._ms(last_s),
                    tokens,
                    self._recorder.cached_tokens[number],
                    self._ms(self._recorder.admitted_s[number]),
                    self._ms(first_s),
                    self._ms(last_s),
                )
            )

    def _new_blocks(self, number: int, tokens: int) -> int:
        """Returns the blocks of `tokens` tokens, without those that were found in the cache."""
        block_size = self._limits.block_size
        return -(-tokens // block_size) - self._recorder.cached_tokens[number] // block_size

    def _write_progress(self, frame: Frame, frame_s: float) -> None:
        """Writes the progress of requests in decode, as if their tokens came evenly."""
        generated_tokens = self._finished_tokens
        for number in self._decoding:
            first_s = self._outcome.first_s[number]
            last_s = self._outcome.last_s[number]
            later_tokens = self._load.output_tokens[number] - 1
            tokens = 1
            if later_tokens:
                tokens += int(later_tokens * (frame_s - first_s) / (last_s - first_s))
            generated_tokens += tokens
            if self._has_bar(number):
                all_tokens = self._load.input_tokens[number] + tokens
                frame.tokens += (number + 1, tokens)
                frame.held += (number + 1, self._new_blocks(number, all_tokens))
        self._figures["generated"] = generated_tokens

    def _pod_steps(self) -> list[tuple[float, float, int, int, int, int, int]]:
        """Returns the steps of all pods in order of time, each with its pod."""
        steps = []
        for lane in self._recorder.lanes.values():
            pods = self._prefill_pod if lane.prefills else self._outcome.pod
            pod = pods[lane.request]
            steps += [(*step, pod) for step in lane.steps]
        return sorted(steps)

    def _write_steps(self, frame: Frame, frame_s: float) -> None:
        steps = self._steps
        while steps and steps[0][0] <= frame_s:
            start_s, duration_s, prompts, decodes, sequences, used_blocks, pod = steps.popleft()
            self._pods[pod].used_blocks = used_blocks
            if pod < MAX_LANES:
                duration_ms = round(duration_s * 1000, 3)
                frame.steps.append(
                    (self._ms(start_s), duration_ms, prompts, decodes, sequences, pod)
                )

    def _write_gaps(self, frame: Frame, frame_s: float) -> None:
        """Writes how many gaps of each length have ended."""
        gaps = self._gaps
        counts: Counter[int] = Counter()
        while gaps and gaps[0][0] <= frame_s:
            _, gap_s, count = gaps.popleft()
            counts[round(gap_s * LatencyTally.PER_S)] += count
        for length, count in counts.items():
            frame.itl += (length, count)

    def _write_pods(self, frame: Frame, frame_s: float) -> None:
        """Writes the state of each pod; an idle pod, which makes no steps, holds no blocks."""
        capacity = self._limits.num_gpu_blocks - 1
        shares = [pod.used_blocks / capacity if pod.running else 0.0 for pod in self._pods]
        self._figures["cache_usage"] = sum(shares) / len(shares)
        self._figures["waiting"] = sum(pod.waiting for pod in self._pods)
        self._figures["running"] = sum(pod.running for pod in self._pods)
        if len(self._pods) == 1:
            return
        states = [f" ({life_state(life, frame_s)})" for life in self._outcome.lives]
        states = states or [""] * len(self._pods)
        for pod, share, state in zip(self._pods[:MAX_LANES], shares, states, strict=False):
            cached_share = round(pod.cached_tokens / max(1, pod.prompt_tokens), 4)
            frame.pods.append((pod.running, pod.waiting, round(share, 4), cached_share, state))
