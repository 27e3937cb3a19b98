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
        self.load, self.plan, self._title = load, plan, title
        self.admitted_s = array("d", [ABSENT]) * len(load)
        self.steps: list[tuple[float, float, int, int, int]] = []
        self._stride = self._seen = 1
        self._preemptions: dict[Pod, int] = {}
        self.lost_s: list[float] = []
        """Times of preemptions."""
        self.chunks: list[tuple[float, int]] = []
        """Prefill chunks except last ones: time of the end, number of the request."""

    def watch(self, pod: Pod, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        for request in batch.admitted:
            if self.admitted_s[request.number] == ABSENT:
                self.admitted_s[request.number] = start_s
        for request in pod.scheduler.prefilling:
            if len(self.chunks) < MOST_CHUNKS and request.number % _every(len(self.load)) == 0:
                self.chunks.append((end_s, request.number))
        known, now = self._preemptions.get(pod, 0), pod.scheduler.preemptions
        if now > known:
            self._preemptions[pod] = now
            self.lost_s += [start_s] * (now - known)
        self._seen += 1
        if self._seen % self._stride == 0:
            decodes = len(batch.decodes) + sum(drafted for drafted, _ in batch.drafts.values())
            self.steps.append((start_s, end_s - start_s, batch.tokens - decodes, decodes, batch.sequences))
            if len(self.steps) > MOST_STEPS:
                del self.steps[::2]
                self._stride *= 2

    def picture(self) -> Picture:
        at, plan, every = self.plan.profile.engine, self.plan, _every(len(self.load))
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
        return Projection(self, outcome).frames()

    def page(self, outcome: SimulationOutcome) -> str:
        return report_of(self.picture(), self.frames(outcome))


def _every(requests: int) -> int:
    """Returns n, for a bar of every n-th request."""
    return max(1, -(-requests // MOST_BARS))


class Projection:
    """Makes the frames of a film in order of time."""

    def __init__(self, film: Film, outcome: SimulationOutcome) -> None:
        self._film, self._load, self._plan, self._outcome = film, film.load, film.plan, outcome
        self._begin_s, self._every = min(outcome.send_s), _every(len(film.load))
        self._under_way: dict[int, None] = {}
        self._written = 0
        """Output tokens of ended requests."""
        self._figures = dict.fromkeys(FIGURES, 0.0)
        self._ttft, self._itl = [0] * (len(FIRST_TOKEN) + 1), [0] * (len(INTER_TOKEN) + 1)

    def frames(self) -> Iterator[Frame]:
        out, film = self._outcome, self._film
        handlers = (self._sent, self._admitted, self._begun, self._over)
        columns = (out.send_s, film.admitted_s, out.first_s, out.last_s)
        orders = [deque(sorted(range(len(its)), key=its.__getitem__)) for its in columns]
        steps, chunks, lost_s = deque(sorted(film.steps)), deque(sorted(film.chunks)), sorted(film.lost_s)
        for at_s in self._moments():
            frame = Frame(at=self._ms(at_s))
            for handle, order, its in zip(handlers, orders, columns, strict=True):
                while order and its[order[0]] <= at_s:
                    handle(order.popleft(), frame)
            self._grow(frame, at_s)
            while steps and steps[0][0] <= at_s:
                start_s, took_s, *counts = steps.popleft()
                prompts, decodes, sequences = counts
                frame.steps.append((self._ms(start_s), round(took_s * 1000, 3), prompts, decodes, sequences))
            while chunks and chunks[0][0] <= at_s:
                end_s, number = chunks.popleft()
                frame.chunks += (number + 1, self._ms(end_s))
            self._figures["preemptions"] = bisect_right(lost_s, at_s)
            # The mean share of used blocks in the timeline's bin, over all pods.
            timeline, capacity = out.timeline, self._plan.profile.engine.num_gpu_blocks - 1
            place = int((at_s - timeline.begin_s) / timeline.bin_s)
            used = timeline.blocks[place] if place < len(timeline.blocks) else 0.0
            self._figures["cache_usage"] = used / timeline.bin_s / self._plan.pods / capacity
            frame.figures = [round(self._figures[name], 5) for name in FIGURES]
            frame.ttft, frame.itl = list(self._ttft), list(self._itl)
            yield frame

    def _moments(self) -> Iterator[float]:
        """Returns the times of the frames: enough to see a run, few enough for a small file."""
        out = self._outcome
        length_s = max(max(out.last_s) - self._begin_s, 1e-3)
        busy_s = sum(last - send for send, last in zip(out.send_s, out.last_s, strict=True)) / self._every
        count = min(MOST_FRAMES, length_s / SHORTEST_S, MOST_ROWS * length_s / max(busy_s, 1e-9))
        count = max(LEAST_FRAMES, int(count))
        return (self._begin_s + length_s * (place + 1) / count for place in range(count))

    def _ms(self, moment_s: float) -> float:
        return round((moment_s - self._begin_s) * 1000, 1)

    # Events of a request.

    def _shown(self, number: int) -> bool:
        return number % self._every == 0

    def _sent(self, number: int, frame: Frame) -> None:
        load = self._load
        self._figures["waiting"] += 1
        if self._shown(number):
            pod = f"pod {self._outcome.pod[number]}" if self._plan.pods > 1 else ""
            prompt, most = load.input_tokens[number], load.output_tokens[number]
            at_ms = self._ms(self._outcome.send_s[number])
            frame.new.append((number + 1, f"#{number + 1}", 0, prompt, most, at_ms, None, pod, 1))

    def _admitted(self, number: int, frame: Frame) -> None:
        self._figures["waiting"] -= 1
        self._figures["running"] += 1
        if self._shown(number):
            at_ms = self._ms(self._film.admitted_s[number])
            frame.phases.append((number + 1, int(Phase.PREFILL), at_ms, 0))

    def _begun(self, number: int, frame: Frame) -> None:
        out, tokens = self._outcome, self._load.input_tokens[number]
        self._under_way[number] = None
        self._figures["prompt"] += tokens
        self._ttft[bisect_left(FIRST_TOKEN, out.first_s[number] - out.send_s[number])] += 1
        if self._shown(number):
            frame.phases.append((number + 1, int(Phase.DECODE), self._ms(out.first_s[number]), 0))
            frame.computed += (number + 1, tokens)

    def _over(self, number: int, frame: Frame) -> None:
        out, tokens = self._outcome, self._load.output_tokens[number]
        del self._under_way[number]
        self._figures["running"] -= 1
        self._figures["length"] += 1
        self._written += tokens
        first_s, last_s = out.first_s[number], out.last_s[number]
        if tokens > 1:
            self._itl[bisect_left(INTER_TOKEN, (last_s - first_s) / (tokens - 1))] += tokens - 1
        if self._shown(number):
            running, first, last = map(self._ms, (self._film.admitted_s[number], first_s, last_s))
            frame.ended.append((number + 1, "length", last, tokens, 0, running, first, last))

    def _grow(self, frame: Frame, at_s: float) -> None:
        """Writes the progress of requests in decode, as if their tokens came at equal distances."""
        out, load, size = self._outcome, self._load, self._plan.profile.engine.block_size
        written = self._written
        for number in self._under_way:
            first_s, more = out.first_s[number], load.output_tokens[number] - 1
            tokens = 1 + int(more * (at_s - first_s) / (out.last_s[number] - first_s)) if more else 1
            written += tokens
            if self._shown(number):
                frame.tokens += (number + 1, tokens)
                frame.held += (number + 1, -(-(load.input_tokens[number] + tokens) // size))
        self._figures["generated"] = written
