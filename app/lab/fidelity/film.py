"""A recording of a simulation for the console page: frames, made after the run."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

from app.base.metrics.families import FIRST_TOKEN, INTER_TOKEN
from app.console.bars import FIGURES, Frame, Picture
from app.console.page import report_of
from app.engine.core.batch import Batch, Phase
from app.lab.fidelity.pod import OfflineRequest, Pod
from app.lab.fidelity.simulation import SimulationOutcome, SimulationPlan
from app.lab.load.loads import LoadTrace
from config import VERSION

SHORTEST_S = 0.25
LEAST_FRAMES, MOST_FRAMES, MOST_ROWS = 60, 1200, 300_000
"""Limits of a film. A row is the growth of one bar in one frame, for each request in flight."""
MOST_STEPS = 40_000
MOST_CHUNKS = 100_000
MOST_BARS = 20_000
"""Most requests with a bar; beyond, only every n-th request gets one. Figures count all requests."""
ABSENT = -1.0


class Film:
    """Records the steps of a simulation (as `watch` of `Simulation`), and makes frames of the record."""

    def __init__(self, load: LoadTrace, plan: SimulationPlan, title: str) -> None:
        self._load, self._plan, self._title = load, plan, title
        self._admitted_s = array("d", [ABSENT]) * len(load)
        self._steps: list[tuple[float, float, int, int, int]] = []
        self._stride = self._seen = 1
        self._every = max(1, -(-len(load) // MOST_BARS))
        self._preemptions: dict[Pod, int] = {}
        self._lost_s: list[float] = []
        self._chunks: list[tuple[float, int]] = []
        """Prefill chunks except last ones: time of the end, number of the request."""
        self._under_way: dict[int, None] = {}
        self._written = 0
        self._figures = dict.fromkeys(FIGURES, 0.0)
        self._ttft, self._itl = [0] * (len(FIRST_TOKEN) + 1), [0] * (len(INTER_TOKEN) + 1)

    def watch(self, pod: Pod, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        for request in batch.admitted:
            if self._admitted_s[request.number] == ABSENT:
                self._admitted_s[request.number] = start_s
        for request in pod.scheduler.prefilling:
            if len(self._chunks) < MOST_CHUNKS and request.number % self._every == 0:
                self._chunks.append((end_s, request.number))
        now = pod.scheduler.preemptions
        self._lost_s += [start_s] * (now - self._preemptions.get(pod, 0))
        self._preemptions[pod] = now
        self._seen += 1
        if self._seen % self._stride == 0:
            decodes = len(batch.decodes) + sum(drafted for drafted, _ in batch.drafts.values())
            self._steps.append((start_s, end_s - start_s, batch.tokens - decodes, decodes, batch.sequences))
            if len(self._steps) > MOST_STEPS:
                del self._steps[::2]
                self._stride *= 2

    def page(self, outcome: SimulationOutcome) -> str:
        return report_of(self.picture(), self.frames(outcome))

    def picture(self) -> Picture:
        at, plan, every = self._plan.profile.engine, self._plan, self._every
        steps = f"every {self._stride}th step is shown" if self._stride > 1 else ""
        bars = f"every {every}th request has a bar" if every > 1 else ""
        server = {
            "version": VERSION, "model": self._title, "task": "generate", "rank": 0, "ranks": {},
            "max_model_len": at.max_model_len, "places": at.max_num_seqs * plan.pods, "shared_steps": True,
            "budget": at.max_num_batched_tokens, "blocks": (at.num_gpu_blocks - 1) * plan.pods,
            "numbered": False, "block_size": at.block_size, "adapter_slots": 0, "publishes": False,
            "index": False, "told": ", ".join(filter(None, ("simulated", steps, bars))),
        }  # fmt: skip
        return Picture(
            began=0.0, server=server, ttft_bounds=FIRST_TOKEN, itl_bounds=INTER_TOKEN,
            frame=Frame(at=0.0, figures=[0.0] * len(FIGURES)),
        )  # fmt: skip

    def frames(self, outcome: SimulationOutcome) -> Iterator[Frame]:
        out, timeline, begin_s = outcome, outcome.timeline, min(outcome.send_s)
        capacity = self._plan.profile.engine.num_gpu_blocks - 1
        columns = (out.send_s, self._admitted_s, out.first_s, out.last_s)
        orders = [deque(sorted(range(len(its)), key=its.__getitem__)) for its in columns]
        handlers = (self._sent, self._admitted, self._begun, self._over)
        steps, chunks, lost_s = deque(sorted(self._steps)), deque(sorted(self._chunks)), sorted(self._lost_s)

        def ms(moment_s: float) -> float:
            return round((moment_s - begin_s) * 1000, 1)

        for at_s in self._moments(out, begin_s):
            frame = Frame(at=ms(at_s))
            for handle, order, its in zip(handlers, orders, columns, strict=True):
                while order and its[order[0]] <= at_s:
                    number = order.popleft()
                    times_ms = [ms(column[number]) for column in columns]
                    handle(out, number, frame, times_ms)
            self._grow(frame, out, at_s)
            while steps and steps[0][0] <= at_s:
                start_s, took_s, *counts = steps.popleft()
                prompts, decodes, sequences = counts
                frame.steps.append((ms(start_s), round(took_s * 1000, 3), prompts, decodes, sequences))
            while chunks and chunks[0][0] <= at_s:
                end_s, number = chunks.popleft()
                frame.chunks += (number + 1, ms(end_s))
            self._figures["preemptions"] = bisect_right(lost_s, at_s)
            place = int((at_s - timeline.begin_s) / timeline.bin_s)
            used = timeline.blocks[place] if place < len(timeline.blocks) else 0.0
            self._figures["cache_usage"] = used / timeline.bin_s / self._plan.pods / capacity
            frame.figures = [round(self._figures[name], 5) for name in FIGURES]
            frame.ttft, frame.itl = list(self._ttft), list(self._itl)
            yield frame

    def _sent(self, out: SimulationOutcome, number: int, frame: Frame, ms: Sequence[float]) -> None:
        self._figures["waiting"] += 1
        if number % self._every == 0:
            pod = f"pod {out.pod[number]}" if self._plan.pods > 1 else ""
            sizes = self._load.input_tokens[number], self._load.output_tokens[number]
            frame.new.append((number + 1, f"#{number + 1}", 0, *sizes, ms[0], None, pod, 1))

    def _admitted(self, out: SimulationOutcome, number: int, frame: Frame, ms: Sequence[float]) -> None:
        self._figures["waiting"] -= 1
        self._figures["running"] += 1
        if number % self._every == 0:
            frame.phases.append((number + 1, int(Phase.PREFILL), ms[1], 0))

    def _begun(self, out: SimulationOutcome, number: int, frame: Frame, ms: Sequence[float]) -> None:
        tokens = self._load.input_tokens[number]
        self._under_way[number] = None
        self._figures["prompt"] += tokens
        self._ttft[bisect_left(FIRST_TOKEN, out.first_s[number] - out.send_s[number])] += 1
        if number % self._every == 0:
            frame.phases.append((number + 1, int(Phase.DECODE), ms[2], 0))
            frame.computed += (number + 1, tokens)

    def _over(self, out: SimulationOutcome, number: int, frame: Frame, ms: Sequence[float]) -> None:
        tokens = self._load.output_tokens[number]
        del self._under_way[number]
        self._figures["running"] -= 1
        self._figures["length"] += 1
        self._written += tokens
        if tokens > 1:
            gap_s = (out.last_s[number] - out.first_s[number]) / (tokens - 1)
            self._itl[bisect_left(INTER_TOKEN, gap_s)] += tokens - 1
        if number % self._every == 0:
            frame.ended.append((number + 1, "length", ms[3], tokens, 0, ms[1], ms[2], ms[3]))

    def _moments(self, out: SimulationOutcome, begin_s: float) -> Iterator[float]:
        """Returns the times of the frames: enough to see a run, few enough for a small file."""
        length_s = max(max(out.last_s) - begin_s, 1e-3)
        busy_s = sum(last - send for send, last in zip(out.send_s, out.last_s, strict=True)) / self._every
        count = min(MOST_FRAMES, length_s / SHORTEST_S, MOST_ROWS * length_s / max(busy_s, 1e-9))
        count = max(LEAST_FRAMES, int(count))
        return (begin_s + length_s * (place + 1) / count for place in range(count))

    def _grow(self, frame: Frame, out: SimulationOutcome, at_s: float) -> None:
        """Writes the progress of requests in decode, as if their tokens came evenly."""
        load, size, written = self._load, self._plan.profile.engine.block_size, self._written
        for number in self._under_way:
            first_s, more = out.first_s[number], load.output_tokens[number] - 1
            tokens = 1 + int(more * (at_s - first_s) / (out.last_s[number] - first_s)) if more else 1
            written += tokens
            if number % self._every == 0:
                frame.tokens += (number + 1, tokens)
                frame.held += (number + 1, -(-(load.input_tokens[number] + tokens) // size))
        self._figures["generated"] = written
