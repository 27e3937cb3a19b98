"""`python -m research.rehearse` with a tiny model: the real engine and the simulation make the same
steps.

How long steps take is the machine's affair, so the verdict is not.
"""

import csv
import json
from itertools import count
from pathlib import Path

import msgspec
import pytest

from app.core.engine.profile import CostConstants, EngineLimits, Profile, read_profile
from research.rehearse import command
from research.rehearse.command import OUTSIDE
from research.rehearse.playing import Clock, play_offline, play_on
from research.rehearse.real_engine import RealEngine
from workbench.load.loads import LoadTrace
from workbench.runs.benchmark_files import read_recordings

pytestmark = pytest.mark.engine

SMALL = ("--model", "tiny", "--device", "cpu", "--in-flight", "2,5", "--requests", "8")
LIMITS = EngineLimits(
    num_gpu_blocks=120, block_size=16, max_num_seqs=4, max_num_batched_tokens=48, max_model_len=256,
    async_scheduling=False,
)  # fmt: skip
LENGTHS = (100, 9), (3, 30), (17, 1), (48, 5), (60, 12), (1, 40), (16, 16), (31, 2)


def test_rehearse_command_writes_a_report_and_recordings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = command.run([*SMALL, "--out", str(tmp_path / "new" / "out")])
    text = capsys.readouterr().out
    assert status in (0, OUTSIDE)
    assert ("\nwithin the bound: " if status == 0 else "NOT within the bound") in text
    assert text.count("the same in the simulation") == 2

    out = tmp_path / "new" / "out"
    document = json.loads((out / "rehearsal.json").read_text())
    assert document["within"] == (status == 0)
    assert [load["in_flight"] for load in document["loads"]] == [2, 5]
    assert all(load["same_steps"] and load["requests"] == 8 for load in document["loads"])
    assert all(
        figure["simulated_s"] > 0
        for load in document["loads"]
        for figure in load["figures"].values()
    )
    with (out / "steps.csv").open() as file:
        assert len(list(csv.DictReader(file))) == document["fitted_steps"]

    profile = read_profile(str(out / "profile.yaml"))
    assert profile.engine.max_num_seqs == 5
    assert profile.device.startswith("cpu, float32, ")
    assert (out / "rehearsal.png").read_bytes().startswith(b"\x89PNG")
    for name in ("real-1-2", "real-2-2", "simulated-2", "real-1-5", "real-2-5", "simulated-5"):
        [recording] = read_recordings(str(out / f"{name}.csv"))
        assert len(recording.send_s) == 8


@pytest.mark.parametrize("blocks", [120, 11])
@pytest.mark.parametrize("in_flight", [None, 3])
def test_real_engine_executes_the_same_steps_as_the_simulation(
    in_flight: int | None, blocks: int
) -> None:
    """Prompts in chunks, requests that wait for a place, one that has all of the budget; in the
    smaller cache some that lose their blocks.
    """
    load = LoadTrace("test")
    for tokens_in, tokens_out in LENGTHS:
        load.arrival_s.append(0.0)
        load.input_tokens.append(tokens_in)
        load.output_tokens.append(tokens_out)
    limits = msgspec.structs.replace(LIMITS, num_gpu_blocks=blocks)
    engine = RealEngine("tiny", "cpu", 1, limits, 1)
    profile = Profile(
        source="-", model="-", device="-", engine=limits, cost=CostConstants(base=1.0)
    )
    simulated = play_offline(profile, load, in_flight)
    ticks = count()  # on this clock every step takes a second
    for _ in range(2):  # what the first time left in the cache is forgotten
        real = play_on(
            engine, load, in_flight, Clock(lambda: float(next(ticks)), lambda seconds: None)
        )
        assert [step.held for step in real.steps] == [step.held for step in simulated.steps]


def test_model_that_cannot_be_loaded_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.run(["--model", "/nowhere"]) == 1
    err = capsys.readouterr().err
    assert err.endswith("error: model /nowhere: Path not found: /nowhere.\n")
    assert "Traceback" not in err
