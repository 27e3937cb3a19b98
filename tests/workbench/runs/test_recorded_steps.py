"""The command simulate makes the steps that each version of vLLM made, which are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.core.engine.batch import Batch
from app.core.versions.chain import played_version
from fidelity.judge_steps.driving import drive
from fidelity.judge_steps.load import Load, Plan
from fidelity.judge_steps.our_engine import OurEngine
from fidelity.judge_steps.records import Record, read_records
from vllm_facts.version import DESCRIBED
from workbench.runs import simulate
from workbench.runs.job import Job
from workbench.runs.pod import Pod
from workbench.runs.prefix_blocks import OfflineRequest

STEP_S = 0.5
KINDS = ("plain", "interval")
"""Kinds of loads whose steps depend on lengths and arrivals alone."""
PROFILE = """
source: recorded steps
model: a scheduler
device: none
engine:
  num-gpu-blocks: {blocks}
  block-size: {block_size}
  max-num-seqs: {max_num_seqs}
  max-num-batched-tokens: {max_num_batched_tokens}
  async-scheduling: false
  enable-prefix-caching: false
cost:
  base: {step_s}
front: {{}}
"""


class TimedEngine(OurEngine):
    """Notes when requests must arrive, for steps that take `STEP_S` each."""

    def __init__(self, load: Load, version: str) -> None:
        super().__init__(load, played_version(version))
        self.arrivals: list[tuple[float, Plan]] = []
        self._end_s = 0.0

    def add(self, plan: Plan) -> None:
        """Notes a time within the step under way; without one, the end of the latest step."""
        arrival_s = self._end_s - STEP_S / 2
        if not self._sequences:
            arrival_s = self._end_s
        if self.arrivals and self.arrivals[-1][0] > arrival_s:
            arrival_s = self.arrivals[-1][0]
        self.arrivals.append((arrival_s, plan))
        super().add(plan)

    def schedule(self) -> Any:
        """Makes a step."""
        step = super().schedule()
        if step is not None:
            self._end_s += STEP_S
        return step


def records_of(version: str) -> list[Record]:
    return [
        record
        for record in read_records(version)
        if record.load.kind in KINDS and not record.load.is_asynchronous
    ]


def simulated_steps(
    record: Record, version: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, int]]:
    """Returns the sequences and the tokens of each step that the command makes."""
    load = record.load
    engine = TimedEngine(load, version)
    drive(load, engine)
    rows = [
        f"{arrival_s},{len(plan.prompt)},{plan.output_tokens}"
        for arrival_s, plan in engine.arrivals
    ]
    trace = folder / "trace.csv"
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]), "utf-8")
    profile = folder / "profile.yaml"
    profile.write_text(
        PROFILE.format(
            blocks=load.blocks,
            block_size=load.block_size,
            max_num_seqs=load.max_num_seqs,
            max_num_batched_tokens=load.max_num_batched_tokens,
            step_s=STEP_S,
        ),
        "utf-8",
    )
    steps = []

    def watch(pod: Pod, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        steps.append((batch.sequences, batch.tokens))

    run_job = Job.run

    def run(job: Job, load: Any, progress: Any, *_: object) -> Any:
        return run_job(job, load, progress, watch)

    monkeypatch.setattr(Job, "run", run)
    interval = ("--prefill-schedule-interval", str(load.prefill_schedule_interval))
    files = ("--profile", str(profile), "--trace", str(trace))
    assert simulate.run([*files, *interval, "--vllm-version", version]) == 0
    return steps


@pytest.mark.parametrize("version", DESCRIBED)
@pytest.mark.parametrize("kind", KINDS)
def test_simulate_makes_the_recorded_steps_of_a_version(
    kind: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = (record for record in records_of(version) if record.load.kind == kind)
    recorded = [
        (len(step.tokens), sum(tokens for _, tokens in step.tokens))
        for step in record.steps.steps
        if step.tokens
    ]
    assert simulated_steps(record, version, tmp_path, monkeypatch) == recorded


def test_recorded_steps_of_versions_differ() -> None:
    old, new = (records_of(version) for version in DESCRIBED)
    steps = [[record.steps.steps for record in records] for records in (old, new)]
    assert steps[0] != steps[1]
