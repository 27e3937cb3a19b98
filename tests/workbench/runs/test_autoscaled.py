"""`understudy simulate --autoscale`:

its figures, the constant fleet beside it, and bad input.
"""

from argparse import ArgumentTypeError
from pathlib import Path

import msgspec
import pytest

from app.core.cli import main
from tests.running_server import ROOT
from tests.workbench.runs.test_command import figures, refusal
from workbench.load.autoscale_flags import read_cold_start

HPA = "hpa:metric=running,target=20,min=1,max=4,window-down=5s"
LOAD = ["--rate", "25", "--arrivals", "ramp", "--seconds", "40", "--output-tokens", "64"]
SCALED = [
    *LOAD,
    "--autoscale",
    HPA,
    "--cold-start",
    "5s",
    "--autoscale-every",
    "2s",
    "--scrape-interval",
    "1s",
]
POLICY = ["--policy", "least-requests"]


def test_gpu_hours_include_loading_and_draining_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "run.svg"
    summary = figures(
        capsys,
        *SCALED,
        *POLICY,
        "--goodput",
        "ttft:300",
        "--gpu-hour-price=2",
        f"--plot={picture}",
    )
    fleet = summary["fleet"]
    goodput = summary["goodput"]
    intervals = fleet["intervals"]
    assert sum(interval["gpu_hours"] for interval in intervals) == pytest.approx(
        summary["gpu_hours"]
    )
    assert summary["gpu_hours"] == pytest.approx(fleet["mean_pods"] * summary["duration_s"] / 3600)
    assert summary["price"]["total"] == pytest.approx(2 * summary["gpu_hours"])
    assert (
        sum(interval["missed"] for interval in intervals) == goodput["requests"] - goodput["good"]
    )
    assert 1 < fleet["mean_pods"] < fleet["most_pods"] <= len(summary["requests_per_pod"])
    assert sum(summary["requests_per_pod"]) == summary["requests"]
    assert max(interval["loading"] for interval in intervals) > 0
    assert fleet["constant"]["goodput"]["good"] >= goodput["good"]
    assert "best constant fleet" in picture.read_text()


def test_best_constant_fleet_is_the_smallest_that_meets_the_objectives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    objectives = ["--slo", "ttft_p99=400ms"]
    pods = len(
        figures(capsys, *SCALED, *POLICY, *objectives)["fleet"]["constant"]["requests_per_pod"]
    )
    swept = figures(capsys, *LOAD, *POLICY, *objectives, "--sweep", "pods=1:4:1", "--processes=1")
    assert pods == swept["fewest"]
    assert figures(capsys, *SCALED, "--slo", "ttft_p99=1ms")["fleet"]["constant"] is None
    assert main(["simulate", *SCALED, *POLICY, *objectives]) == 0
    verdict, *lines = capsys.readouterr().out.splitlines()
    assert verdict.startswith(("Yes: ttft_p99 is ", "No: ttft_p99 is "))
    assert lines[0].endswith(f"; pods by {HPA}, least-requests") and lines[-1].startswith(
        "ttft_p99 <= 400 ms: "
    )
    assert [
        line for line in lines if line.startswith(("| autoscaled ", "| best constant "))
    ] == lines[-3:-1]


def test_autoscaling_policy_of_a_plugin_determines_when_pods_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = ROOT / "examples" / "plugins" / "look_ahead.py"
    flags = ["simulate", *SCALED, *POLICY, "--json", "-", "--plugin"]
    starts = []
    for policy in (HPA, "look-ahead:min=1,max=4"):
        policy_flags = [
            "--look-ahead-target",
            "20",
            "--look-ahead-ahead",
            "30s",
            "--autoscale",
            policy,
        ]
        assert main([*flags, str(example), *policy_flags]) == 0
        intervals = msgspec.json.decode(capsys.readouterr().out)["fleet"]["intervals"]
        starts.append(next(interval["begin_s"] for interval in intervals if interval["loading"]))
    assert starts[1] < starts[0]
    (bad := tmp_path / "bad.py").write_text(
        "from app.plugins import Plugin\nAPI = 2\nclass Bad(Plugin):\n    name = 'bad'\n"
        "    def autoscalers(self):\n        return {'bad': lambda pods: len}\nEXTENSION = Bad\n"
    )
    assert main([*flags, str(bad), "--autoscale", "bad:min=1,max=3"]) == 1
    assert "a plugin's autoscalers hook failed" in capsys.readouterr().err


def test_cold_start_is_a_duration_or_a_size_divided_by_a_bandwidth() -> None:
    assert read_cold_start("1m30s", 0.0) == 90
    assert read_cold_start("40s+2GB/s", 30e9) == 55
    assert read_cold_start("30GB@500MB/s", 1.0) == 60
    for text, rule in (
        ("2GB/s", "must include the size"),
        ("soon", "must be a duration"),
        ("-1s", "negative"),
    ):
        with pytest.raises((ValueError, ArgumentTypeError), match=rule):
            read_cold_start(text, 0.0)


def test_autoscaled_simulation_of_a_load_that_lasts_too_long_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = [
        "--num-requests",
        "200",
        "--in-flight",
        "16",
        "--output-tokens",
        "64",
        *SCALED[len(LOAD) :],
    ]
    assert sum(figures(capsys, *closed)["requests_per_pod"]) == 200
    trace = tmp_path / "trace.csv"
    sessions = "arrival_s,input_tokens,output_tokens,session,think_s\n0,10,10,a,\n,20,10,a,1e9\n"
    for text in ("arrival_s,input_tokens,output_tokens\n0,10,10\n1e300,10,10\n", sessions):
        trace.write_text(text)
        message = refusal(capsys, "--trace", str(trace), *SCALED[len(LOAD) :])
        assert (
            message
            == f"{trace}, row 3: with --autoscale, a request must not arrive after 10,000,000 s"
        )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*LOAD, "--autoscale", HPA], "--autoscale and --cold-start must be used together"),
        ([*LOAD, "--cold-start", "5s"], "--autoscale and --cold-start must be used together"),
        (
            [*SCALED, "--cold-start", "9m"],
            "--cold-start (540 s) must be shorter than the load (37.",
        ),
        ([*SCALED, "--cold-start", "0/s"], "--cold-start must be a size greater than 0"),
        (
            [*SCALED, "--autoscale", HPA.replace("max=4", "max=0")],
            "--autoscale hpa: max: '0' must be a",
        ),
        (
            [*SCALED, "--autoscale", HPA.replace("running", "cpu")],
            "--autoscale hpa: metric: invalid",
        ),
        (
            [*SCALED, "--autoscale-every", "0"],
            "argument --autoscale-every: '0' must be a duration from 100ms",
        ),
        (
            [*LOAD, "--scrape-interval", "1s"],
            "--autoscale and --cold-start must be used together; ",
        ),
        (
            [*SCALED, "--sweep", "pods=1:2:1"],
            "--autoscale cannot be combined with --prefill-pods or a sweep over pods",
        ),
    ],
)
def test_invalid_autoscaling_flags_are_rejected_with_a_one_line_error(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, *argv, status=2 if message.startswith("argument") else 1).startswith(
        message
    )
