"""Studies of saved scrapes, and of servers that are asked at intervals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.engine.batch import SchedulerRules
from app.core.versions.chain import played_version
from config.declaration import ConfigError
from config.flags import FlagTable
from tests.http_server import Handler, serving
from tests.workbench.study.metrics_text import metrics_text
from workbench.load.progress import ignore_progress
from workbench.runs.job_reader import read_table
from workbench.study.command import run
from workbench.study.compare_command import make_study_job
from workbench.study.folder import read_study
from workbench.study.scrapes import PodPoller

START_S = 1_767_225_600


def save(folder: Path, texts: list[str], step_s: int = 60) -> list[str]:
    """Saves scrapes with their times; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"{number:03d}.txt"
        path.write_text(text)
        time_s = START_S + number * step_s
        os.utime(path, (time_s, time_s))
        paths.append(str(path))
    return paths


def read(folder: Path) -> dict[str, Any]:
    """The files of a study."""
    return {
        "workload": yaml.safe_load((folder / "workload.yaml").read_text()),
        "fleet": yaml.safe_load((folder / "fleet.yaml").read_text()),
        "measured": json.loads((folder / "measured.json").read_text()),
        "provenance": json.loads((folder / "provenance.json").read_text()),
    }


def test_counts_are_the_differences_of_the_counters(tmp_path: Path) -> None:
    counts = [100, 160, 220, 20, 50]  # the fourth is after a restart
    texts = [
        metrics_text(count, started_s=1000.0 if number < 3 else START_S + 170)
        for number, count in enumerate(counts)
    ]
    paths = save(tmp_path / "pod-a", texts)
    assert run(["take", "--scrapes", *paths, "--window", "120s", "--out", str(tmp_path / "s")]) == 0
    study = read(tmp_path / "s")
    first, second = study["workload"]["windows"]
    assert first["requests"] == 120
    assert first["arrivals"] == [60, 60]
    assert second["requests"] == 50
    assert first["input_tokens"] == {
        "mean": 150,
        "count": 120,
        "buckets": [[100, 200, 120]],
    }
    assert first["cached_share"] == pytest.approx(48 / 150)
    assert study["provenance"]["resets"] == [{"pod": "pod", "before": "2026-01-01T00:03:00.000Z"}]
    assert study["fleet"]["groups"][0]["flags"]["num-gpu-blocks-override"] == 2000
    measured = study["measured"]["windows"][0]
    assert measured["latencies"]["ttft_s"]["sum"] == pytest.approx(0.05 * 120)
    assert measured["latencies"]["ttft_s"]["buckets"] == [[0.04, 0.06, 120]]
    assert len(study["workload"]["assumptions"]) >= 4


def test_requests_in_flight_are_arrivals(tmp_path: Path) -> None:
    texts = [metrics_text(0), metrics_text(10, running=4, waiting=2), metrics_text(16)]
    paths = save(tmp_path / "pod", texts)
    run(["take", "--scrapes", *paths, "--window", "1h", "--out", str(tmp_path / "s")])
    [window] = read(tmp_path / "s")["workload"]["windows"]
    assert window["arrivals"] == [16, 0]
    assert window["requests"] == 16


def test_pods_of_several_folders_add_up(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        paths += save(tmp_path / name, [metrics_text(0), metrics_text(30), metrics_text(60)])
    run(["take", "--scrapes", *paths, "--out", str(tmp_path / "s")])
    study = read(tmp_path / "s")
    assert sum(window["requests"] for window in study["workload"]["windows"]) == 120
    assert set(study["measured"]["pods"]) == {"a", "b"}
    assert study["fleet"]["groups"][0]["pods"] == 2


def test_two_models_are_an_error_that_names_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = save(tmp_path / "a", [metrics_text(0, model="llama"), metrics_text(5, model="llama")])
    paths += save(tmp_path / "b", [metrics_text(0, model="qwen"), metrics_text(5, model="qwen")])
    assert run(["take", "--scrapes", *paths, "--out", str(tmp_path / "s")]) == 1
    assert "llama, qwen" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([metrics_text(0)], "at least two times"),
        ([metrics_text(5), metrics_text(5)], "no request ended"),
        (["", ""], "no metrics of vLLM"),
        (["\0\xff", "{"], "is not in the text format of Prometheus"),
        (["vllm:num_requests_running 1\n"] * 2, "no histogram of input_tokens"),
        (["a{" * 50_000, "x"], "text format"),
        ([metrics_text(1), "a" * (7 << 20)], "text format"),
        (
            [
                "\n".join(line for line in metrics_text(n).splitlines() if "_bucket" not in line)
                for n in (0, 9)
            ],
            "the buckets of input_tokens",
        ),
    ],
)
def test_unfit_scrapes_are_one_line(
    texts: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = save(tmp_path / "pod", texts)
    assert run(["take", "--scrapes", *paths, "--out", str(tmp_path / "s")]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("value", ["NaN", "-5", "1e300", "+Inf"])
def test_impossible_values_are_left_out_with_a_warning(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = metrics_text(20).replace(
        'vllm:request_prompt_tokens_sum{engine="0",model_name="m"} 3000.0',
        f'vllm:request_prompt_tokens_sum{{engine="0",model_name="m"}} {value}',
    )
    paths = save(tmp_path / "pod", [metrics_text(10), broken, metrics_text(30)])
    assert run(["take", "--scrapes", *paths, "--window", "1h", "--out", str(tmp_path / "s")]) == 0
    assert "1 samples were NaN, negative, infinite or huge" in capsys.readouterr().err
    [window] = read(tmp_path / "s")["workload"]["windows"]
    assert window["requests"] == 20
    assert window["input_tokens"]["mean"] == pytest.approx(150)


def test_equal_times_of_files_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = save(tmp_path / "pod", [metrics_text(0), metrics_text(5)], step_s=0)
    assert run(["take", "--scrapes", *paths, "--out", str(tmp_path / "s")]) == 1
    assert "same time of change" in capsys.readouterr().err


def test_serve_gives_the_flags_of_simulate(tmp_path: Path) -> None:
    paths = save(tmp_path / "pod", [metrics_text(0), metrics_text(5)])
    serve = "vllm serve Qwen/Qwen3-8B --max-num-seqs 64 --tensor-parallel-size 2 --enable-lora"
    run(
        ["take", "--scrapes", *paths, "--out", str(tmp_path / "s")]
        + ["--serve", serve, "--device", "h100"]
    )
    [group] = read(tmp_path / "s")["fleet"]["groups"]
    assert group["flags"] == {
        "profile": "auto",
        "device": "h100",
        "model": "Qwen/Qwen3-8B",
        "max-num-seqs": "64",
        "tensor-parallel-size": "2",
        "num-gpu-blocks-override": 2000,
        "block-size": 16,
    }
    assert group["ignored"] == ["--enable-lora"]


def test_manifest_gives_options_and_version(tmp_path: Path) -> None:
    paths = save(tmp_path / "pod", [metrics_text(0), metrics_text(5)])
    manifest = tmp_path / "deployment.yaml"
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.11.0",
        "command": ["vllm", "serve", "Qwen/Qwen3-8B"],
        "args": ["--max-num-seqs", "96"],
    }
    template = {"spec": {"containers": [container]}}
    document = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": template}}
    manifest.write_text(yaml.safe_dump(document))
    words = ["take", "--scrapes", *paths, "--out", str(tmp_path / "s"), "--device", "h100"]
    assert run([*words, "--serve", str(manifest)]) == 0
    [group] = read(tmp_path / "s")["fleet"]["groups"]
    assert group["version"] == "0.11"
    assert group["flags"]["vllm-version"] == "0.11"
    assert group["flags"]["max-num-seqs"] == "96"


@pytest.mark.parametrize(
    "flags",
    [{"profile": "qwen3-14b-h100"}, {"device": "h100", "model": "Qwen/Qwen3-8B"}],
    ids=["profile", "device"],
)
def test_study_of_a_fleet_simulates_its_version(flags: FlagTable, tmp_path: Path) -> None:
    paths = save(tmp_path / "pod", [metrics_text(0), metrics_text(5)])
    serve = "docker run vllm/vllm-openai:v0.29.0 --model Qwen/Qwen3-8B"
    folder = tmp_path / "s"
    assert run(["take", "--scrapes", *paths, "--out", str(folder), "--serve", serve]) == 0
    flags = {**flags, "max-model-len": "8000"}
    job, _ = make_study_job(read_study(folder), read_table(flags), calibrates=False)
    assert job.plan.rules == played_version("0.29").rules(SchedulerRules)
    assert job.plan.rules != played_version("0.32").rules(SchedulerRules)
    newer, _ = make_study_job(
        read_study(folder), read_table({**flags, "vllm-version": "0.33"}), calibrates=False
    )
    assert newer.plan.rules == SchedulerRules()


def test_study_says_which_version_is_simulated_in_place_of_an_unknown_one(tmp_path: Path) -> None:
    paths = save(tmp_path / "pod", [metrics_text(0), metrics_text(5)])
    serve = "docker run vllm/vllm-openai:v0.8.5 --model Qwen/Qwen3-8B"
    folder = tmp_path / "s"
    assert run(["take", "--scrapes", *paths, "--out", str(folder), "--serve", serve]) == 0
    fleet = read(folder)["fleet"]
    assert "vllm-version" not in fleet["groups"][0]["flags"]
    assert "vLLM 0.8.5 cannot be simulated; vLLM 0.32 is, in its place." in fleet["assumed"]


def test_files_without_a_valid_time_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = save(tmp_path / "pod", [metrics_text(0), metrics_text(5)])
    os.utime(paths[1], (0, -86400))
    assert run(["take", "--scrapes", *paths, "--out", str(tmp_path / "s")]) == 1
    error = capsys.readouterr().err
    assert "the time of change of" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["", "'", "docker run hello", "vllm serve m\0", "vllm " * 3000, "--"]
)
def test_wrong_commands_are_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = save(tmp_path / "pod", [metrics_text(0), metrics_text(5)])
    words = ["take", "--scrapes", *paths, "--out", str(tmp_path / "s")]
    status = run([*words, f"--serve={text}"])
    message = capsys.readouterr().err
    assert status in (0, 1, 2)
    assert message.count("\n") == int(status != 0)


class Clock:
    """A time that only sleeps advance."""

    def __init__(self) -> None:
        self.now_s = float(START_S)
        self.requests = 0

    def now(self) -> float:
        """Unix seconds."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Advances the time, in which requests end."""
        self.now_s += seconds
        self.requests += round(seconds)


def test_pods_are_asked_at_intervals() -> None:
    clock = Clock()

    class Pod(Handler):
        def do_GET(self) -> None:
            if self.path == "/version":
                self.reply(200, b'{"version": "0.33.0"}')
            elif self.path == "/metrics" and clock.requests == 30:
                self.reply(503)
            else:
                self.reply(200, metrics_text(clock.requests).encode())

    with serving(Pod) as port:
        poller = PodPoller([f"http://127.0.0.1:{port}"], now=clock.now, sleep=clock.sleep)
        pods = poller.run(60, 15, ignore_progress)
        versions = poller.versions()
    [scrapes] = pods.values()
    assert [scrape.time_s - START_S for scrape in scrapes] == [0, 15, 45, 60]
    assert versions == {f"127.0.0.1:{port}": "0.33.0"}
    [failure] = poller.failures.values()
    assert "status 503" in failure


def test_absent_pods_are_one_line() -> None:
    clock = Clock()
    poller = PodPoller(["http://127.0.0.1:9"], now=clock.now, sleep=clock.sleep)
    with pytest.raises(ConfigError, match="cannot be read"):
        poller.run(60, 15, ignore_progress)
