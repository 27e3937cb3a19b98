"""Comparisons of a study with a simulation, and calibration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from app.core.engine.profile import read_profile
from config.declaration import UsageError
from workbench.load.workload import read_workload
from workbench.runs.job_reader import read_table
from workbench.runs.job_spec import JobSpec
from workbench.study.calibration import scaled_profile, start_name
from workbench.study.command import run
from workbench.study.compare_command import make_study_job
from workbench.study.folder import (
    Fleet,
    FleetGroup,
    Measured,
    MeasuredWindow,
    Steps,
    read_study,
    write_study,
)
from workbench.study.simulated import SIMULATED, segments_of, simulate_study

WINDOW = """\
- start: 2026-11-28T10:{minute:02}:00Z
  end: 2026-11-28T10:{end:02}:00Z
  requests: {count}
  rate_per_s: {rate}
  arrivals: [{count}]
  input_tokens: {{mean: {tokens}, count: {count}, buckets: [[200, 500, 30], [500, 1000, 30]]}}
  output_tokens: {{mean: 12, count: {count}, buckets: [[10, 20, 60]]}}
  cached_share: 0.2
"""
BOUNDS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)
PROFILE = "qwen3-14b-h100"


def write_truth(folder: Path, factors: tuple[float, float, float] | None = None) -> None:
    """Writes a study of a fleet that is faster or slower than a shipped profile by factors.

    Without factors, it has no latencies.
    """
    folder.mkdir()
    text = "understudy_workload: 1\nmodel: m\nwindows:\n"
    for minute in range(6):
        count = 60 + 40 * (minute % 3)
        tokens = 450 + 60 * (minute % 2)
        text += WINDOW.format(
            minute=minute, end=minute + 1, count=count, rate=count / 60, tokens=tokens
        )
    (folder / "workload.yaml").write_text(text)
    workload = read_workload(folder / "workload.yaml")
    windows = [
        MeasuredWindow(
            start=window.start.timestamp(), end=window.end.timestamp(), pods=2.0, latencies={}
        )
        for window in workload.windows
    ]
    steps = Steps(edges=[], pods=[], gauges={}, counters={}, sums={}, counts={})
    measured = Measured(model="m", windows=windows, steps=steps, pods={})
    fleet = Fleet(model="m", groups=[FleetGroup(pods=2)])
    parts = {"workload": workload, "fleet": fleet, "measured": measured, "provenance": {}}
    write_study(folder, **parts)  # type: ignore[arg-type]
    if factors is None:
        return
    study = read_study(folder)
    job, _ = make_study_job(study, JobSpec().changed(profile=PROFILE, seed=5), calibrates=False)
    profile = scaled_profile(job.plan.profile, factors)
    truth = replace(job, plan=replace(job.plan, profile=profile))
    simulated = simulate_study(
        study, truth, segments=segments_of(study), max_requests=10_000, progress=_ignore
    )
    for window, other in zip(measured.windows, simulated, strict=True):
        window.latencies = {name: other.latencies[name] for name in SIMULATED}
        window.running = other.running
        window.kv_usage = other.kv_usage
    write_study(folder, **parts)  # type: ignore[arg-type]


def _ignore(done: int) -> None:
    """Ignores progress."""


def test_same_engine_is_within_the_noise_of_a_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_truth(tmp_path / "s", (1.0, 1.0, 1.0))
    assert run(["compare", str(tmp_path / "s"), "--profile", PROFILE]) == 0
    out = capsys.readouterr().out
    assert "TTFT within" in out
    comparison = json.loads((tmp_path / "s" / "comparison.json").read_text())
    assert comparison["within_limit"] is True
    assert comparison["flags"]["profile"] == PROFILE
    assert comparison["errors"]["tpot_s"] < 0.03
    assert comparison["errors"]["ttft_s"] < 0.12


def test_other_engine_is_above_the_limit_until_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_truth(tmp_path / "s", (1.8, 1.3, 2.0))
    words = ["compare", str(tmp_path / "s"), "--profile", PROFILE]
    assert run(words) == 1
    assert "above the limit of 20%" in capsys.readouterr().out
    assert run([*words, "--calibrate"]) == 0
    comparison = json.loads((tmp_path / "s" / "comparison.json").read_text())
    before, fitted, judged = comparison["parts"]
    assert before["windows"] == fitted["windows"] == judged["windows"] == 3
    assert comparison["constants"]["step"] == pytest.approx(1.8, rel=0.05)
    errors = {row["quantity"]: row["error"] for row in judged["rows"]}
    assert abs(errors["tpot_s"]) < 0.03
    assert abs(errors["ttft_s"]) < 0.1
    profile = read_profile(str(tmp_path / "s" / "profile.yaml"))
    assert "calibrated by study compare" in profile.source


def test_unknown_device_needs_a_profile_or_a_calibration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_truth(tmp_path / "s", (1.5, 1.0, 1.0))
    assert run(["compare", str(tmp_path / "s")]) == 2
    assert "the device of the pods is not known" in capsys.readouterr().err
    assert run(["compare", str(tmp_path / "s"), "--calibrate"]) == 0
    assert "start for an unknown device" in capsys.readouterr().out


def test_start_for_an_unknown_device_is_the_closest_kind(tmp_path: Path) -> None:
    write_truth(tmp_path / "s", (1.0, 1.0, 1.0))
    study = read_study(tmp_path / "s")
    for window in study.measured.windows:
        tokens = 400 * window.latencies["ttft_s"].count
        prefill = msgspec.structs.replace(window.latencies["ttft_s"], sum=tokens * 40e-6)
        window.latencies["prefill_s"] = prefill
    assert start_name(study) == PROFILE
    for window in study.measured.windows:
        window.latencies["prefill_s"].sum *= 20
    assert start_name(study) == "smollm2-135m-cpu"


def test_large_loads_are_simulated_on_a_part_of_the_pods(tmp_path: Path) -> None:
    write_truth(tmp_path / "s", (1.0, 1.0, 1.0))
    study = read_study(tmp_path / "s")
    job, _ = make_study_job(study, JobSpec().changed(profile=PROFILE), calibrates=False)
    windows = simulate_study(
        study, job, segments=segments_of(study), max_requests=300, progress=_ignore
    )
    counts = [window.latencies["ttft_s"].count for window in windows]
    assert sum(counts) == pytest.approx(600 / 2, abs=5)
    assert windows[2].running == pytest.approx(study.measured.windows[2].running, rel=0.3)


@pytest.mark.parametrize("flag", ["sweep", "in-flight", "requests"])
def test_flags_that_do_not_describe_a_fleet_are_rejected(flag: str, tmp_path: Path) -> None:
    write_truth(tmp_path / "s")
    value = {"sweep": "pods=1:4:1", "in-flight": "3", "requests": "x.csv"}[flag]
    with pytest.raises(UsageError, match=f"--{flag} cannot be used"):
        make_study_job(
            read_study(tmp_path / "s"),
            read_table({"profile": PROFILE, flag: value}),
            calibrates=False,
        )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("measured.json", b"[" * 100_000),
        ("measured.json", b'{"model": "m"}'),
        ("measured.json", b"\xff"),
        ("measured.json", b"PODS"),
        ("measured.json", b"START"),
        ("fleet.yaml", b"model: m\ngroups: []\n"),
        ("fleet.yaml", b"a: [" * 1000),
        ("fleet.yaml", b"\x00"),
        ("workload.yaml", b"understudy_workload: 1\n"),
    ],
)
def test_wrong_files_are_one_line(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_truth(tmp_path / "s")
    path = tmp_path / "s" / name
    if content == b"PODS":
        content = path.read_bytes().replace(b'"pods":2.0', b'"pods":1e300')
    if content == b"START":
        content = path.read_bytes().replace(b'"start":1', b'"start":1e300')
    path.write_bytes(content)
    assert run(["compare", str(tmp_path / "s"), "--profile", PROFILE]) == 1
    message = capsys.readouterr().err
    assert name in message
    assert message.count("\n") == 1


def test_missing_study_and_unknown_words_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(tmp_path / "none")]) == 1
    assert "study take writes it" in capsys.readouterr().err
    assert run(["tak"]) == 2
    assert "did you mean take?" in capsys.readouterr().err
    assert run([]) == 0
    assert "study take" in capsys.readouterr().out


@pytest.mark.fleet
def test_picture_is_drawn(tmp_path: Path) -> None:
    write_truth(tmp_path / "s", (1.0, 1.0, 1.0))
    path = tmp_path / "c.png"
    assert run(["compare", str(tmp_path / "s"), "--profile", PROFILE, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
