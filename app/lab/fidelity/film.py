"""A recording of a simulation for the console page: frames, made after the run."""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

from app.base.metrics.families import FIRST_TOKEN, INTER_TOKEN
from app.base.metrics.recorder import LatencyTally
from app.console.frames import FIGURES, Frame, Picture
from app.console.page import report_of
from app.engine.core.batch import Batch, Phase
from app.lab.fidelity.pod import OfflineRequest, Pod
from app.lab.fidelity.simulation import SimulationOutcome, SimulationPlan
from app.lab.load.autoscale import Life
from app.lab.load.loads import LoadTrace
from config import VERSION

SHORTEST_S = 0.25
LEAST_FRAMES, MOST_FRAMES, MOST_ROWS = 60, 1200, 300_000
"""Limits of a film. A row is the growth of one bar in one frame, for each request in flight."""
MOST_STEPS = 40_000
MOST_LANES = 32
"""Most pods whose steps the page shows."""
MOST_CHUNKS = 100_000
MOST_BARS = 20_000
"""Most requests with a bar; beyond, only every n-th request gets one.

Figures count all requests.
"""
ABSENT = -1.0
Handler = Callable[[SimulationOutcome, int, Frame, Sequence[float]], None]
"""Receives the number of a request when one of its events is due, a frame, and times in
milliseconds.
"""


@dataclass(slots=True, eq=False)
class PodLane:
    """Steps of one pod: start, seconds, prompt tokens, decode tokens, sequences, used blocks."""

    request: int
    """Number of a request that the pod served."""
    prefills: bool
    """True for a pod that only prefills."""
    steps: list[tuple[float, float, int, int, int, int]] = field(default_factory=list)
    stride: int = 1
    seen: int = 0
    preemptions: int = 0

    def add(self, step: tuple[float, float, int, int, int, int], most: int) -> None:
        self.seen += 1
        if self.seen % self.stride == 0:
            self.steps.append(step)
            if len(self.steps) > most:
                del self.steps[::2]
                self.stride *= 2


@dataclass(slots=True)
class PodFigures:
    """State of one pod at a moment; `prompt` and `cached` sum the tokens of admitted prompts."""

    running: int = 0
    waiting: int = 0
    used: int = 0
    prompt: int = 0
    cached: int = 0


def state_of(life: Life, at_s: float) -> str:
    if at_s < life.begun_s:
        return "not there yet"
    if life.drain_s < inf and at_s >= life.gone_s:
        return "gone"
    if at_s < life.ready_s:
        return "loading"
    return "ready" if at_s < life.drain_s else "draining"


class Film:
    """Records the steps of a simulation (as `watch` of `Simulation`), and makes frames of the
    record.
    """

    def __init__(self, load: LoadTrace, plan: SimulationPlan, title: str) -> None:
        self._load, self._plan, self._title = load, plan, title
        self._admitted_s = array("d", [ABSENT]) * len(load)
        self._cached = array("i", [0]) * len(load)
        """Prompt tokens found in the prefix cache."""
        self._lanes: dict[Pod, PodLane] = {}
        scaling = plan.autoscaling
        self._most_steps = max(
            2, MOST_STEPS // (plan.pods if scaling is None else scaling.policy.most)
        )
        self._pods: list[PodFigures] = []
        self._first_pod = array("i")
        """Pod of each request that computes its prompt."""
        self._every = max(1, -(-len(load) // MOST_BARS))
        self._lost_s: list[float] = []
        self._chunks: list[tuple[float, int]] = []
        """Prefill chunks except last ones: time of the end, number of the request."""
        self._under_way: dict[int, None] = {}
        self._written = 0
        self._figures = dict.fromkeys(FIGURES, 0.0)

    def watch(self, pod: Pod, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        if pod not in self._lanes:
            first = batch.admitted[0]
            self._lanes[pod] = PodLane(first.number, first.remote_decode)
        lane = self._lanes[pod]
        for request in batch.admitted:
            if self._admitted_s[request.number] == ABSENT:
                self._admitted_s[request.number] = start_s
                self._cached[request.number] = request.cached_tokens
        for request in pod.scheduler.prefilling:
            if len(self._chunks) < MOST_CHUNKS and request.number % self._every == 0:
                self._chunks.append((end_s, request.number))
        now = pod.scheduler.preemptions
        self._lost_s += [start_s] * (now - lane.preemptions)
        lane.preemptions = now
        decodes = len(batch.decodes) + sum(drafted for drafted, _ in batch.drafts.values())
        sizes = batch.tokens - decodes, decodes, batch.sequences
        lane.add(
            (start_s, end_s - start_s, *sizes, pod.blocks.capacity - pod.blocks.free),
            self._most_steps,
        )

    def page(self, outcome: SimulationOutcome) -> str:
        return report_of(self.picture(outcome), self.frames(outcome))

    def waits_s(self, outcome: SimulationOutcome) -> tuple[float, float]:
        """Returns the mean times from sending to the first step, and from there to the first token."""
        count, admitted_s = len(self._load), sum(self._admitted_s)
        return (admitted_s - sum(outcome.send_s)) / count, (
            sum(outcome.first_s) - admitted_s
        ) / count

    def picture(self, outcome: SimulationOutcome) -> Picture:
        at, pods, every = self._plan.profile.engine, outcome.pods, self._every
        stride = max((lane.stride for lane in self._lanes.values()), default=1)
        steps = f"at least one step in {stride} is shown" if stride > 1 else ""
        lanes = f"the first {MOST_LANES} of {pods} pods have a lane" if pods > MOST_LANES else ""
        bars = f"one request in {every} has a bar" if every > 1 else ""
        server = {
            "version": VERSION, "model": self._title, "task": "generate", "rank": 0, "ranks": {},
            "max_model_len": at.max_model_len, "places": at.max_num_seqs * pods, "shared_steps": True,
            "budget": at.max_num_batched_tokens, "blocks": (at.num_gpu_blocks - 1) * pods,
            "numbered": False, "block_size": at.block_size, "adapter_slots": 0, "publishes": False,
            "index": False, "requests_per_bar": every,
            "told": ", ".join(filter(None, ("simulated", lanes, steps, bars))),
        }  # fmt: skip
        idle = [(0, 0, 0.0, 0.0, "")] * min(pods, MOST_LANES) if pods > 1 else []
        return Picture(
            began=None, server=server, ttft_bounds=FIRST_TOKEN, itl_bounds=INTER_TOKEN,
            frame=Frame(at=0.0, figures=[0.0] * len(FIGURES), pods=idle),
        )  # fmt: skip

    def frames(self, outcome: SimulationOutcome) -> Iterator[Frame]:
        out, begin_s = outcome, min(outcome.send_s)
        self._pods = [PodFigures() for _ in range(out.pods)]
        self._first_pod = out.pod if out.transfers is None else out.transfers.prefill_pod
        columns = (out.send_s, self._admitted_s, out.first_s, out.last_s)
        events = [
            (deque(sorted(range(len(its)), key=its.__getitem__)), its, handlers)
            for its, *handlers in self._events(out)
        ]
        begun = deque(
            sorted((it.begun_s, pod) for pod, it in enumerate(out.lives) if it.begun_s > begin_s)
        )
        chunks, lost_s = deque(sorted(self._chunks)), sorted(self._lost_s)
        lanes = [
            ((self._first_pod if it.prefills else out.pod)[it.request], it.steps)
            for it in self._lanes.values()
        ]
        steps = deque(sorted((*step, pod) for pod, its in lanes for step in its))

        def ms(moment_s: float) -> float:
            return round((moment_s - begin_s) * 1000, 1)

        for at_s in self._moments(out, begin_s):
            frame = Frame(at=ms(at_s))
            for order, its, handlers in events:
                while order and its[order[0]] <= at_s:
                    number = order.popleft()
                    times_ms = [ms(column[number]) for column in (*columns, its)]
                    for handle in handlers:
                        handle(out, number, frame, times_ms)
            self._grow(frame, out, at_s)
            while steps and steps[0][0] <= at_s:
                start_s, took_s, prompts, decodes, sequences, used, pod = steps.popleft()
                self._pods[pod].used = used
                if pod < MOST_LANES:
                    took_ms = round(took_s * 1000, 3)
                    frame.steps.append((ms(start_s), took_ms, prompts, decodes, sequences, pod))
            while begun and begun[0][0] <= at_s:
                life_s, pod = begun.popleft()
                frame.marks.append((ms(life_s), "scale", f"pod {pod} begins to load"))
            while chunks and chunks[0][0] <= at_s:
                end_s, number = chunks.popleft()
                frame.chunks += (number + 1, ms(end_s))
            self._figures["preemptions"] = bisect_right(lost_s, at_s)
            self._count_pods(frame, out, at_s)
            frame.figures = [round(self._figures[name], 5) for name in FIGURES]
            yield frame

    def _events(
        self, out: SimulationOutcome
    ) -> Iterator[tuple[Sequence[float], *tuple[Handler, ...]]]:
        """Yields the times of one kind of event, by request, and its handlers; kinds are in order."""
        log, first, last = out.transfers, self._first_pod, out.pod
        yield out.send_s, self._sent, partial(self._move, first, 1, 0)
        yield self._admitted_s, self._admitted, partial(self._move, first, -1, 1)
        if log is not None:
            yield log.prefilled_s, self._prefilled, partial(self._move, first, 0, -1)
            yield log.seen_s, partial(self._move, last, 1, 0)
            yield log.begin_s, partial(self._move, last, -1, 1)
        yield out.first_s, self._begun
        yield out.last_s, self._over, partial(self._move, last, 0, -1)

    def _move(
        self, pods: Sequence[int], waiting: int, running: int, out: object, number: int, *_: object
    ) -> None:
        pod = self._pods[pods[number]]
        pod.waiting += waiting
        pod.running += running

    def _prefilled(
        self, out: SimulationOutcome, number: int, frame: Frame, ms: Sequence[float]
    ) -> None:
        if number % self._every == 0:
            frame.phases.append((number + 1, int(Phase.TRANSFER), ms[-1], 0))

    def _count_pods(self, frame: Frame, out: SimulationOutcome, at_s: float) -> None:
        """Writes the state of each pod; an idle one, which makes no steps, holds no blocks."""
        capacity = self._plan.profile.engine.num_gpu_blocks - 1
        shares = [it.used / capacity if it.running else 0.0 for it in self._pods]
        self._figures["cache_usage"] = sum(shares) / len(shares)
        self._figures["waiting"] = sum(it.waiting for it in self._pods)
        self._figures["running"] = sum(it.running for it in self._pods)
        if len(shares) > 1:
            states = [f" ({state_of(life, at_s)})" for life in out.lives] or [""] * len(shares)
            frame.pods = [
                (
                    it.running,
                    it.waiting,
                    round(share, 4),
                    round(it.cached / max(1, it.prompt), 4),
                    state,
                )
                for it, share, state in zip(self._pods[:MOST_LANES], shares, states, strict=False)
            ]

    def _sent(self, out: SimulationOutcome, number: int, frame: Frame, ms: Sequence[float]) -> None:
        if number % self._every == 0:
            pods = dict.fromkeys((self._first_pod[number], out.pod[number]))
            pod = f"pod {', then '.join(map(str, pods))}" if len(self._pods) > 1 else ""
            sizes = self._load.input_tokens[number], self._load.output_tokens[number]
            frame.new.append((number + 1, f"#{number + 1}", 0, *sizes, ms[0], None, pod, 1))

    def _admitted(
        self, out: SimulationOutcome, number: int, frame: Frame, ms: Sequence[float]
    ) -> None:
        tokens, cached = self._load.input_tokens[number], self._cached[number]
        pod = self._pods[self._first_pod[number]]
        pod.prompt, pod.cached = pod.prompt + tokens, pod.cached + cached
        self._figures["cached"] += cached
        if self._load.group or self._load.session:  # else no prompts share anything
            self._figures["queries"] += tokens
            self._figures["hits"] += cached
        if number % self._every == 0:
            frame.phases.append((number + 1, int(Phase.PREFILL), ms[1], 0))
            frame.held += (number + 1, self._own_blocks(number, tokens))

    def _begun(
        self, out: SimulationOutcome, number: int, frame: Frame, ms: Sequence[float]
    ) -> None:
        tokens = self._load.input_tokens[number]
        self._under_way[number] = None
        self._figures["prompt"] += tokens
        frame.ttft += (round((out.first_s[number] - out.send_s[number]) * LatencyTally.PER_S), 1)
        if number % self._every == 0:
            frame.phases.append((number + 1, int(Phase.DECODE), ms[2], 0))
            frame.computed += (number + 1, tokens)

    def _over(self, out: SimulationOutcome, number: int, frame: Frame, ms: Sequence[float]) -> None:
        tokens = self._load.output_tokens[number]
        del self._under_way[number]
        self._figures["length"] += 1
        self._written += tokens
        if tokens > 1:
            gap_s = (out.last_s[number] - out.first_s[number]) / (tokens - 1)
            frame.itl += (round(gap_s * LatencyTally.PER_S), 1)
        if number % self._every == 0:
            frame.ended.append(
                (number + 1, "length", ms[3], tokens, self._cached[number], ms[1], ms[2], ms[3])
            )

    def _own_blocks(self, number: int, tokens: int) -> int:
        """Returns the blocks of `tokens` tokens without those that the request found in the cache."""
        size = self._plan.profile.engine.block_size
        return -(-tokens // size) - self._cached[number] // size

    def _moments(self, out: SimulationOutcome, begin_s: float) -> Iterator[float]:
        """Returns the times of the frames: enough to see a run, few enough for a small file."""
        length_s = max(max(out.last_s) - begin_s, 1e-3) * (
            1 + 1e-9
        )  # the last frame has the last token
        busy_s = (
            sum(last - send for send, last in zip(out.send_s, out.last_s, strict=True))
            / self._every
        )
        count = min(MOST_FRAMES, length_s / SHORTEST_S, MOST_ROWS * length_s / max(busy_s, 1e-9))
        count = max(LEAST_FRAMES, int(count))
        return (begin_s + length_s * (place + 1) / count for place in range(count))

    def _grow(self, frame: Frame, out: SimulationOutcome, at_s: float) -> None:
        """Writes the progress of requests in decode, as if their tokens came evenly."""
        load, written = self._load, self._written
        for number in self._under_way:
            first_s, more = out.first_s[number], load.output_tokens[number] - 1
            tokens = (
                1 + int(more * (at_s - first_s) / (out.last_s[number] - first_s)) if more else 1
            )
            written += tokens
            if number % self._every == 0:
                frame.tokens += (number + 1, tokens)
                frame.held += (
                    number + 1,
                    self._own_blocks(number, load.input_tokens[number] + tokens),
                )
        self._figures["generated"] = written
