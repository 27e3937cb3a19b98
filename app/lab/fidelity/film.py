"""A recording of a simulation for the console page: frames, made after the run."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator

from app.base.metrics.families import FIRST_TOKEN, INTER_TOKEN
from app.console.frames import FIGURES, Frame, Picture
from app.console.page import report_of
from app.engine.core.batch import Batch, Phase
from app.lab.fidelity.pod import OfflineRequest, Pod
from app.lab.fidelity.simulation import SimulationOutcome, SimulationPlan
from app.lab.load.trace import LoadTrace
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
        """Every n-th request has a bar."""
        self._preemptions: dict[Pod, int] = {}
        self._lost_s: list[float] = []
        """Times of preemptions."""
        self._chunks: list[tuple[float, int]] = []
        """Prefill chunks except last ones: time of the end, number of the request."""

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
        """Yields the frames from the first request to the last token."""
        out, load, begin_s = outcome, self._load, min(outcome.send_s)
        columns = (out.send_s, self._admitted_s, out.first_s, out.last_s)
        orders = [deque(sorted(range(len(its)), key=its.__getitem__)) for its in columns]
        steps, chunks = deque(sorted(self._steps)), deque(sorted(self._chunks))
        lost_s, under_way, written = sorted(self._lost_s), dict[int, None](), 0
        figures = dict.fromkeys(FIGURES, 0.0)
        ttft, itl = [0] * (len(FIRST_TOKEN) + 1), [0] * (len(INTER_TOKEN) + 1)

        def ms(moment_s: float) -> float:
            return round((moment_s - begin_s) * 1000, 1)

        def reached(place: int) -> Iterator[tuple[int, bool]]:
            """Yields the requests that have come so far, and whether they have bars."""
            order, its = orders[place], columns[place]
            while order and its[order[0]] <= at_s:
                number = order.popleft()
                yield number, number % self._every == 0

        for at_s in self._moments(out, begin_s):
            frame = Frame(at=ms(at_s))
            for number, shown in reached(0):
                figures["waiting"] += 1
                if shown:
                    pod = f"pod {out.pod[number]}" if self._plan.pods > 1 else ""
                    sizes = load.input_tokens[number], load.output_tokens[number]
                    at_ms = ms(out.send_s[number])
                    frame.new.append((number + 1, f"#{number + 1}", 0, *sizes, at_ms, None, pod, 1))
            for number, shown in reached(1):
                figures["waiting"] -= 1
                figures["running"] += 1
                if shown:
                    frame.phases.append((number + 1, int(Phase.PREFILL), ms(self._admitted_s[number]), 0))
            for number, shown in reached(2):
                under_way[number] = None
                figures["prompt"] += load.input_tokens[number]
                ttft[bisect_left(FIRST_TOKEN, out.first_s[number] - out.send_s[number])] += 1
                if shown:
                    frame.phases.append((number + 1, int(Phase.DECODE), ms(out.first_s[number]), 0))
                    frame.computed += (number + 1, load.input_tokens[number])
            for number, shown in reached(3):
                del under_way[number]
                figures["running"] -= 1
                figures["length"] += 1
                tokens, first_s, last_s = load.output_tokens[number], out.first_s[number], out.last_s[number]
                written += tokens
                if tokens > 1:
                    itl[bisect_left(INTER_TOKEN, (last_s - first_s) / (tokens - 1))] += tokens - 1
                if shown:
                    running, first, last = map(ms, (self._admitted_s[number], first_s, last_s))
                    frame.ended.append((number + 1, "length", last, tokens, 0, running, first, last))
            figures["generated"] = written + self._grow(frame, out, under_way, at_s)
            while steps and steps[0][0] <= at_s:
                start_s, took_s, *counts = steps.popleft()
                prompts, decodes, sequences = counts
                frame.steps.append((ms(start_s), round(took_s * 1000, 3), prompts, decodes, sequences))
            while chunks and chunks[0][0] <= at_s:
                end_s, number = chunks.popleft()
                frame.chunks += (number + 1, ms(end_s))
            figures["preemptions"] = bisect_right(lost_s, at_s)
            figures["cache_usage"] = self._cache_usage(out, at_s)
            frame.figures = [round(figures[name], 5) for name in FIGURES]
            frame.ttft, frame.itl = list(ttft), list(itl)
            yield frame

    def _moments(self, out: SimulationOutcome, begin_s: float) -> Iterator[float]:
        """Returns the times of the frames: enough to see a run, few enough for a small file."""
        length_s = max(max(out.last_s) - begin_s, 1e-3)
        busy_s = sum(last - send for send, last in zip(out.send_s, out.last_s, strict=True)) / self._every
        count = min(MOST_FRAMES, length_s / SHORTEST_S, MOST_ROWS * length_s / max(busy_s, 1e-9))
        count = max(LEAST_FRAMES, int(count))
        return (begin_s + length_s * (place + 1) / count for place in range(count))

    def _cache_usage(self, out: SimulationOutcome, at_s: float) -> float:
        """Returns the mean share of used blocks in the timeline's bin, over all pods."""
        timeline, capacity = out.timeline, self._plan.profile.engine.num_gpu_blocks - 1
        place = int((at_s - timeline.begin_s) / timeline.bin_s)
        used = timeline.blocks[place] if place < len(timeline.blocks) else 0.0
        return used / timeline.bin_s / self._plan.pods / capacity

    def _grow(self, frame: Frame, out: SimulationOutcome, under_way: dict[int, None], at_s: float) -> int:
        """Writes the progress of requests in decode, as if tokens came evenly; returns their sum."""
        load, size, written = self._load, self._plan.profile.engine.block_size, 0
        for number in under_way:
            first_s, more = out.first_s[number], load.output_tokens[number] - 1
            tokens = 1 + int(more * (at_s - first_s) / (out.last_s[number] - first_s)) if more else 1
            written += tokens
            if number % self._every == 0:
                frame.tokens += (number + 1, tokens)
                frame.held += (number + 1, -(-(load.input_tokens[number] + tokens) // size))
        return written
