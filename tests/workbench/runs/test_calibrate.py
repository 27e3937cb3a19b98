"""A fit: constants that were known are found again; what is written; what is refused."""

import json
import shutil
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from app.core.engine.profile import read_profile
from app.extensions.costs.datasheet import datasheet_profile
from tests.callbacks import ignore
from tests.extensions.costs.test_datasheet import QWEN
from workbench.runs import calibrate
from workbench.runs.fit_report import (
    constants_table,
    fit_warnings,
    misfits,
    profile_yaml,
)
from workbench.runs.fitting import (
    CONSTANTS,
    Certainty,
    Problem,
    Run,
    make_problem,
    scale_start,
)
from workbench.runs.measured_run import MeasuredRun
from workbench.runs.search import Search, certainties
from workbench.runs.simulation import SimulationPlan, simulate

TRUE = read_profile("qwen3-14b-h100")
FITTED = ("weights", "per_token", "front")
OFF = {"weights": 1.1, "per_token": 0.8, "front": 1.5}
"""By which the start is wrong."""


def load(rate: float, count: int, tokens: int) -> MeasuredRun:
    """Requests of which nothing but the load is known."""
    rng = Random(f"{rate}")
    at_s = 0.0
    arrivals = []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        arrivals.append(at_s)
    inputs = [rng.randint(tokens // 2, tokens * 3 // 2) for _ in range(count)]
    outputs = [rng.randint(10, 60) for _ in range(count)]
    moments = dict.fromkeys(("arrival_s", "send_s", "first_s", "last_s"), arrivals)
    return MeasuredRun(name=f"rate-{rate:g}", input_tokens=inputs, output_tokens=outputs, **moments)


def run_of(recording: MeasuredRun) -> Run:
    """What the true constants make of it."""
    return Run(recording, 64, 60e-6, Run(recording, 64, 60e-6, []).replay(TRUE).figures)


def scaled_problem() -> Problem:
    """Its start is `OFF` the truth."""
    cost = {name: getattr(TRUE.cost, name) * OFF[name] for name in ("weights", "per_token")}
    front = msgspec.structs.replace(TRUE.front, front=TRUE.front.front * OFF["front"])
    start = msgspec.structs.replace(
        TRUE, cost=msgspec.structs.replace(TRUE.cost, **cost), front=front
    )
    fixed = [constant.name for constant in CONSTANTS if constant.name not in FITTED]
    return make_problem(start, [run_of(load(3, 30, 800)), run_of(load(9, 45, 2000))], fixed)


@pytest.mark.calibrate
def test_fit_recovers_and_identifies_the_cost_constants() -> None:
    problem = scaled_problem()
    fit = Search(problem, None, 130, ignore).run(seed=3)
    constants = certainties(problem, fit.x, None)
    values = problem.candidate(fit.x)
    assert values["weights"] == pytest.approx(TRUE.cost.weights, rel=0.02)
    assert values["per_token"] == pytest.approx(TRUE.cost.per_token, rel=0.02)
    assert values["front"] == pytest.approx(TRUE.front.front, rel=0.05)
    assert fit.loss < 0.05 * problem.loss([0.0] * len(FITTED))
    assert {"weights", "per_token"} <= {
        constant.name for constant in constants if constant.is_identified
    }


@pytest.mark.calibrate
def test_same_seed_gives_the_same_fit() -> None:
    first_fit = Search(scaled_problem(), None, 12, ignore).run(seed=5)
    second_fit = Search(scaled_problem(), None, 12, ignore).run(seed=5)
    assert first_fit == second_fit


def test_similar_steps_identify_only_a_sum_of_two_cost_constants() -> None:
    fixed = [constant.name for constant in CONSTANTS if constant.name not in ("base", "weights")]
    problem = make_problem(TRUE, [run_of(load(2, 400, 40))], fixed)
    constants = certainties(problem, [0.0, 0.0], None)
    identified = {constant.name: constant.is_identified for constant in constants}
    assert identified == {"base": False, "weights": False, "base + weights": True}
    warnings = fit_warnings(problem, problem.replay([0.0, 0.0]), constants)
    assert "base and weights are identified as a sum only" in warnings
    assert any("no run saturates the engine" in line for line in warnings)
    assert "not identified" in constants_table(constants)
    guessed = [Certainty("base", 1.0, 1.0, 0.5)]
    guessed_warnings = fit_warnings(problem, problem.replay([0.0, 0.0]), guessed)
    [line] = [warning for warning in guessed_warnings if "no constant is" in warning]
    assert line not in warnings


@pytest.mark.calibrate
def test_only_base_and_front_constants_are_fitted_to_an_idle_server() -> None:
    auto = datasheet_profile(QWEN, "h100")
    cost = msgspec.structs.replace(auto.cost, base=3 * auto.cost.base)
    front = msgspec.structs.replace(auto.front, front=0.5 * auto.front.front)
    true = msgspec.structs.replace(auto, cost=cost, front=front)
    rng = Random(1)
    at_s = [5 * number + rng.random() for number in range(12)]
    planned = MeasuredRun(
        name="idle",
        arrival_s=at_s,
        send_s=at_s,
        first_s=at_s,
        last_s=at_s,
        input_tokens=[rng.randint(500, 1500) for _ in at_s],
        output_tokens=[rng.randint(10, 20) for _ in at_s],
    )
    outcome = simulate(planned.load, SimulationPlan(profile=true))
    first_s = [first + rng.gauss(0, 1e-4) for first in outcome.first_s]
    recording = msgspec.structs.replace(
        planned, send_s=list(outcome.send_s), first_s=first_s, last_s=list(outcome.last_s)
    )
    problem = make_problem(auto, [Run(recording, None, 0.0, recording.figures())])
    fit = Search(problem, None, 50, ignore).run(seed=3)
    fitted = problem.profile(fit.x)
    assert fitted.cost.base == pytest.approx(cost.base, rel=0.05)
    assert fitted.front.front == pytest.approx(front.front, rel=0.05)
    others = msgspec.structs.replace(fitted.cost, base=auto.cost.base)
    assert others == auto.cost and fitted.cost.products is auto.cost.products
    [line] = fit_warnings(problem, problem.replay(fit.x), certainties(problem, fit.x, None))
    assert "base and front are fitted, all other constants stay" in line


@pytest.mark.calibrate
def test_fit_recovers_the_engine_step_time_constant() -> None:
    start = read_profile("smollm2-135m-cpu")
    recording = load(2, 60, 300)
    true = msgspec.structs.replace(
        start, engine=msgspec.structs.replace(start.engine, engine_step_time=0.16)
    )
    run = Run(recording, 16, 0.0, Run(recording, 16, 0.0, []).replay(true).figures)
    fixed = [constant.name for constant in CONSTANTS if constant.name != "engine_step_time"]
    problem = make_problem(start, [run], fixed)
    fit = Search(problem, None, 24, ignore).run(seed=3)
    assert problem.profile(fit.x).engine.engine_step_time == pytest.approx(0.16, rel=0.02)
    assert not make_problem(TRUE, [run], fixed).constants


def test_profile_written_by_the_calibration_is_read_back_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    small = msgspec.structs.replace(
        TRUE, cost=msgspec.structs.replace(TRUE.cost, wake=1e-5, base=2e-17)
    )
    path.write_text(profile_yaml(small, [Certainty("tile", 1, 1, 0.5)]))
    assert read_profile(str(path)) == small
    assert "# Not identified by the recordings: tile." in path.read_text()


# The command.


def recorded(folder: Path, name: str = "run.csv") -> Path:
    path = folder / name
    took_s = 0.3 + len(name) / 70
    rows = []
    for number in range(40):
        at_s = number / 4
        rows.append(f"{at_s},{200 + number},{5 + number % 7},{at_s + 0.05},{at_s + took_s}")
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,first_s,last_s", *rows]))
    return path


@pytest.mark.calibrate
def test_calibrate_command_writes_a_profile_a_table_and_a_chart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    png = tmp_path / "mine.png"
    words = [
        str(recorded(tmp_path)),
        "--start",
        "qwen3-14b-h100",
        "--evaluations",
        "30",
        "--jobs",
        "1",
    ]
    words += [
        "--check",
        str(recorded(tmp_path, "other.csv")),
        "--in-flight",
        "8",
        "--turnaround",
        "60us",
    ]
    assert calibrate.run([*words, "--out", str(out), "--png", str(png), "--model", "mine"]) == 0
    profile = read_profile(str(out))
    assert profile.model == "mine" and list(profile.errors) == ["run", "other"]
    assert "1 runs that the fit never saw: median error" in profile.checked
    assert png.read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr()
    assert (
        "TTFT mean" in output.out
        and "base + weights" in output.out
        and "warning: no run idles" not in output.err
    )


@pytest.mark.calibrate
def test_calibration_can_start_from_a_model_and_device_data_sheet(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }
    shape |= {**dict(zip(names, (2048, 16, 16), strict=True)), "intermediate_size": 5632}
    config.write_text(json.dumps(shape))
    words = ["--model-config", str(config), "--device", "l40s", "--num-gpu-blocks", "3000"]
    words += ["--evaluations", "20"]
    out = tmp_path / "mine.yaml"
    assert calibrate.run([str(recorded(tmp_path)), *words, "--jobs", "1", "--out", str(out)]) == 0
    assert read_profile(str(out)).engine.num_gpu_blocks == 3000


@pytest.mark.calibrate
@pytest.mark.parametrize(
    "words, rule",
    [
        ([], "profile auto: device is also required"),
        (
            ["--start", "qwen3-14b-h100", "--device", "h100"],
            "--start cannot be combined with --device",
        ),
        (
            ["--start", "qwen3-14b-h100", "--num-gpu-blocks", "10"],
            "do not fit in the KV cache of 144",
        ),
        (["--start", "qwen3-14b-h100", "--png", "/nowhere/x.png"], "folder not found: /nowhere"),
        (["--start", "qwen3-14b-h100", "--check", "nowhere.csv"], "nowhere.csv: No such file"),
        (
            ["--start", "qwen3-14b-h100", "--check", "copy.csv"],
            "copy is already used for fitting; --check requires other runs",
        ),
        (["--start", "qwen3-14b-h100", "--check", "mine.yaml"], "mine.yaml is specified twice"),
        (
            ["run.csv", "--start", "qwen3-14b-h100"],
            "two runs are named run; rename one of the files",
        ),
    ],
)
def test_invalid_calibration_input_is_rejected_without_an_output_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], rule: str
) -> None:
    out = tmp_path / "mine.yaml"
    run = recorded(tmp_path)
    shutil.copy(run, tmp_path / "copy.csv")
    words = [
        str(tmp_path / word) if word in ("run.csv", "copy.csv", "mine.yaml") else word
        for word in words
    ]
    usage = any(
        word in rule for word in ("start cannot", "turnaround", "fitting", "whole number", "twice")
    )
    assert calibrate.run([str(run), *words, "--out", str(out)]) == (2 if usage else 1)
    message = capsys.readouterr().err
    assert rule in message and message.startswith("error: ") and message.count("\n") == 1
    assert not out.exists()


def test_missing_optimizer_is_reported_with_the_install_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cma", None)
    words = [
        str(recorded(tmp_path)),
        "--start",
        "qwen3-14b-h100",
        "--out",
        str(tmp_path / "mine.yaml"),
    ]
    assert calibrate.run(words) == 1
    assert "pip install -e '.[calibrate]'" in capsys.readouterr().err


def test_start_constants_are_scaled_to_the_speed_of_the_server() -> None:
    costs = {
        name: 40 * getattr(TRUE.cost, name)
        for name in ("base", "weights", "per_token", "per_attention")
    }
    slow = msgspec.structs.replace(TRUE, cost=msgspec.structs.replace(TRUE.cost, **costs))
    runs = [run_of(load(3, 30, 800))]
    scaled = scale_start(slow, runs)
    assert scaled.cost.weights == pytest.approx(TRUE.cost.weights, rel=0.5)
    assert (scaled.cost.p, scaled.cost.tau) == (TRUE.cost.p, TRUE.cost.tau)
    assert scale_start(TRUE, runs) is TRUE


def test_fit_with_large_mean_errors_is_reported_as_unusable() -> None:
    good = [0.05] * 12
    bad = [0.01, 0.02, 0.9, 0.9, 0.0, 0.0, 0.3, 0.3, -0.8, -0.2, 0.0, 0.0]
    assert misfits({"good": good, "tail": [0.0, 0.1, 0.9, 0.9] * 3}, 120) == []
    [warning] = misfits({"good": good, "bad": bad}, 120)
    assert "bad: this profile errs by -80% in E2E mean" in warning and "120" in warning
    assert f"# {warning}." in profile_yaml(TRUE, [], [warning])
