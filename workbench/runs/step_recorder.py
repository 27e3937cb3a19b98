"""Records the steps of a simulation, from which `film_frames` makes frames."""

from array import array
from dataclasses import dataclass, field

from workbench.engine.steps import Batch
from workbench.load.loads import LoadTrace
from workbench.runs.pod import Pod
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.simulation import SimulationPlan

MAX_STEPS = 40_000
MAX_CHUNKS = 100_000
MAX_BARS = 20_000
"""Most requests with a bar; beyond, only every n-th request gets a bar. Figures count all requests.
"""
ABSENT = -1.0

StepRow = tuple[float, float, int, int, int, int]
"""Start, seconds, prompt tokens, decode tokens, sequences, used blocks."""


@dataclass(slots=True, eq=False)
class PodLane:
    """Steps of one pod, thinned out."""

    request: int
    """Number of a request that the pod served."""
    prefills: bool
    """True for a pod that only prefills."""
    max_steps: int
    steps: list[StepRow] = field(default_factory=list)
    stride: int = 1
    """Every stride-th step is stored."""
    seen: int = 0
    preemptions: int = 0

    def append(self, step: StepRow) -> None:
        """Stores a step if it is due, and every second stored step beyond `max_steps`."""
        self.seen += 1
        if self.seen % self.stride == 0:
            self.steps.append(step)
            if len(self.steps) > self.max_steps:
                del self.steps[::2]
                self.stride *= 2


class StepRecorder:
    """Records the steps of a simulation; `watch` is that of `Simulation`."""

    def __init__(self, load: LoadTrace, plan: SimulationPlan) -> None:
        self.admitted_s = array("d", [ABSENT]) * len(load)
        """Time of each request's first step."""
        self.cached_tokens = array("i", [0]) * len(load)
        """Prompt tokens of each request found in the prefix cache."""
        self.lanes: dict[Pod, PodLane] = {}
        self.requests_per_bar = max(1, -(-len(load) // MAX_BARS))
        self.preempted_s: list[float] = []
        """Time of each preemption."""
        self.chunks: list[tuple[float, int]] = []
        """Prefill chunks except last ones: time of the end, number of the request."""
        max_pods = plan.pods
        if plan.autoscaling is not None:
            max_pods = plan.autoscaling.policy.max_pods
        self._max_lane_steps = max(2, MAX_STEPS // max_pods)

    def watch(self, pod: Pod, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        """Records a step."""
        if pod not in self.lanes:
            first = batch.admitted[0]
            self.lanes[pod] = PodLane(first.number, first.remote_decode, self._max_lane_steps)
        lane = self.lanes[pod]
        for request in batch.admitted:
            if self.admitted_s[request.number] == ABSENT:
                self.admitted_s[request.number] = start_s
                self.cached_tokens[request.number] = request.cached_tokens
        for request in pod.scheduler.prefilling:
            if len(self.chunks) < MAX_CHUNKS and request.number % self.requests_per_bar == 0:
                self.chunks.append((end_s, request.number))
        preemptions = pod.scheduler.preemptions
        self.preempted_s += [start_s] * (preemptions - lane.preemptions)
        lane.preemptions = preemptions
        decodes = len(batch.decodes) + sum(drafted.drafts for drafted in batch.drafts.values())
        used_blocks = pod.blocks.capacity - pod.blocks.free
        lane.append(
            (
                start_s,
                end_s - start_s,
                batch.tokens - decodes,
                decodes,
                batch.sequences,
                used_blocks,
            )
        )
