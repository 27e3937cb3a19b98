"""A recording of a simulation for the console page."""

from collections.abc import Iterator

from app.core.base.metrics.table import FIRST_TOKEN, INTER_TOKEN
from app.extensions.console.frames import FIGURES, Frame, Picture
from app.extensions.console.page import report_of
from config import VERSION
from workbench.load.loads import LoadTrace
from workbench.runs.film_frames import MAX_LANES, FrameMaker
from workbench.runs.simulation import SimulationOutcome, SimulationPlan
from workbench.runs.step_recorder import StepRecorder


class Film:
    """Records a simulation that calls `watch`, and writes a page about the run afterwards."""

    def __init__(self, load: LoadTrace, plan: SimulationPlan, title: str) -> None:
        self._title = title
        self._recorder = StepRecorder(load, plan)
        self.watch = self._recorder.watch

    def page(self, outcome: SimulationOutcome) -> str:
        """Returns the HTML page of the run."""
        return report_of(self.picture(outcome), self.frames(outcome))

    def mean_waits_s(self, outcome: SimulationOutcome) -> tuple[float, float]:
        """Returns the mean times from sending to the first step, and from it to the first token."""
        count = len(outcome.load)
        admitted_s = sum(self._recorder.admitted_s)
        queue_s = (admitted_s - sum(outcome.send_s)) / count
        prefill_s = (sum(outcome.first_s) - admitted_s) / count
        return queue_s, prefill_s

    def frames(self, outcome: SimulationOutcome) -> Iterator[Frame]:
        """Returns the frames of the run, in order of time."""
        return FrameMaker(outcome, self._recorder).frames()

    def picture(self, outcome: SimulationOutcome) -> Picture:
        """Returns the state before the first frame."""
        limits = outcome.plan.profile.engine
        pods = outcome.pods
        server = {
            "version": VERSION,
            "model": self._title,
            "task": "generate",
            "rank": 0,
            "ranks": {},
            "max_model_len": limits.max_model_len,
            "places": limits.max_num_seqs * pods,
            "shared_steps": True,
            "budget": limits.max_num_batched_tokens,
            "blocks": (limits.num_gpu_blocks - 1) * pods,
            "numbered": False,
            "block_size": limits.block_size,
            "adapter_slots": 0,
            "publishes": False,
            "index": False,
            "requests_per_bar": self._recorder.requests_per_bar,
            "told": ", ".join(self._notes(pods)),
        }
        idle_pods = []
        if pods > 1:
            idle_pods = [(0, 0, 0.0, 0.0, "")] * min(pods, MAX_LANES)
        return Picture(
            began=None,
            server=server,
            ttft_bounds=FIRST_TOKEN,
            itl_bounds=INTER_TOKEN,
            frame=Frame(at=0.0, figures=[0.0] * len(FIGURES), pods=idle_pods),
        )

    def _notes(self, pods: int) -> list[str]:
        """Returns what the page does not show."""
        notes = ["simulated"]
        if pods > MAX_LANES:
            notes.append(f"the first {MAX_LANES} of {pods} pods have a lane")
        stride = max((lane.stride for lane in self._recorder.lanes.values()), default=1)
        if stride > 1:
            notes.append(f"at least one step in {stride} is shown")
        if self._recorder.requests_per_bar > 1:
            notes.append(f"one request in {self._recorder.requests_per_bar} has a bar")
        return notes
