"""`understudy simulate`: its figures and files, and what it says of bad input."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.cli import main
from tests.running_server import ROOT
from workbench.load import progress as progress_module
from workbench.load.progress import progress_bar
from workbench.runs.simulate import run
from workbench.runs.summary import read_objectives
from workbench.runs.sweeps import read_sweep

HEADER = "arrival_s,input_tokens,output_tokens\n"
DRAWN = [
    "--rate",
    "5",
    "--seconds",
    "4",
    "--input-tokens",
    "300:lognormal",
    "--output-tokens",
    "1-40",
]
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 2560, "num_hidden_layers": 36, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 9728, "vocab_size": 151936,
    "max_position_embeddings": 40960,
}  # fmt: skip
FEW = ["--max-model-len", "2000"]
FAILURES: list[tuple[list[str], str]] = [
    (["--rate", "1e6", "--seconds", "1e6"], "the load would have more than 100,000,000 requests"),
    (["--num-requests", "1000000000"], "the load would have more than 100,000,000 requests"),
    (
        ["--rate", "1e-6", "--seconds", "1"],
        "at 1e-06 requests/s, no request arrives within 1 s",
    ),
    (
        [*DRAWN, "--tensor-parallel-size", "2"],
        "tensor-parallel-size requires profile auto",
    ),
    ([*DRAWN, "--profile", "none"], "profile none: must be a file or one of"),
    (
        ["--rate", "5", "--profile", "qwen3-14b-h100", "--device", "h100"],
        "profile qwen3-14b-h100: device requires profile auto",
    ),
    (["--rate", "5", "--device", "h100"], "profile auto: model-config is also required"),
    (
        [*DRAWN, "--max-num-batched-tokens", "100"],
        "max-num-batched-tokens 100 must not be less than",
    ),
    (
        [*DRAWN, "--num-gpu-blocks-override", "99"],
        "max-model-len 40960 does not fit in the KV cache of 1568 tokens; use --max-model-len 1568",
    ),
    (
        [*FEW, "--num-requests", "1", "--input-tokens", "2000"],
        "the load, request 1: the sum of input_tokens 2000",
    ),
    ([*DRAWN, "--html", "absent/x.html"], f"absent/x.html: folder not found: {ROOT / 'absent'}"),
    ([*DRAWN, "--plot", "app"], "app is a folder, not a file"),
    ([*DRAWN, "--json", "/dev/null"], "/dev/null is not a regular file"),
    ([*DRAWN, "--plot", "x.pdf"], "x.pdf: the name of an image file must end with .png or .svg"),
    (["--trace", "absent.csv"], "absent.csv: No such file or directory"),
]
"""Command lines that can be parsed but end with status 1, and a part of each message."""


def figures(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run([*argv, "--json", "-"]) == 0
    return msgspec.json.decode(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 1) -> str:
    """The one line that is said of these flags."""
    assert run(argv) == status
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def test_simulation_figures_match_the_times_in_the_request_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, requests, picture = (
        tmp_path / name for name in ("trace.csv", "requests.csv", "run.png")
    )
    trace.write_text(
        HEADER + "".join(f"{number / 10},{100 + number},{5 + number}\n" for number in range(20))
    )
    requests.symlink_to(tmp_path / "target")
    summary = figures(capsys, f"--trace={trace}", f"--requests={requests}", f"--plot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG") and requests.is_symlink()
    with requests.open() as file:
        rows = [
            {name: float(text) for name, text in fields.items()} for fields in csv.DictReader(file)
        ]
    ttft_s = sorted(row["first_s"] - row["send_s"] for row in rows)
    tpot_s = sorted((row["last_s"] - row["first_s"]) / (row["output_tokens"] - 1) for row in rows)
    for name, values in (("ttft_s", ttft_s), ("tpot_s", tpot_s)):
        wanted = {"mean": sum(values) / 20, "p50": values[10], "p90": values[18], "p99": values[19]}
        wanted |= {"p95": values[19], "p99.9": values[19]}
        assert summary[name] == pytest.approx(wanted, abs=2e-6)
    assert [row["input_tokens"] for row in rows] == [100 + number for number in range(20)]
    assert (summary["requests"], summary["preemptions"], summary["requests_per_pod"]) == (
        20,
        0,
        [20],
    )
    assert summary["duration_s"] == pytest.approx(max(row["last_s"] for row in rows), abs=2e-6)
    assert figures(capsys, "--trace", str(requests))["ttft_s"] == summary["ttft_s"]


def test_synthetic_acceptance_reduces_the_time_between_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ["--num-requests", "1", "--input-tokens", "16", "--output-tokens", "1201"]
    config = (
        '{"method": "ngram", "num_speculative_tokens": 4, "rejection_sample_method": "synthetic"'
    )
    every = ["--speculative-config", config + ', "synthetic_acceptance_length": 3}']
    by_chance = ["--speculative-config", config + ', "synthetic_acceptance_length": 2.25}']
    none = ["--speculative-config", config + ', "synthetic_acceptance_length": 1}']
    runs = [figures(capsys, *load, *flags) for flags in (none, every, by_chance)]
    tpot_s = [run["tpot_s"]["mean"] for run in runs]
    assert tpot_s[0] / tpot_s[1] == pytest.approx(3, rel=0.01)
    assert tpot_s[0] / tpot_s[2] == pytest.approx(2.25, rel=0.03)
    # The tokens that a step accepts come together, so the gaps between steps stay.
    itl_s = [run["itl_s"]["mean"] for run in runs]
    assert itl_s == pytest.approx([itl_s[0]] * 3, rel=0.01)
    assert figures(capsys, *load, *by_chance) == figures(capsys, *load, *by_chance)
    message = refusal(capsys, *load, "--speculative-config", config + "}", status=2)
    assert "exactly one of synthetic_acceptance_rates or synthetic_acceptance_length" in message


def test_flag_may_have_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--rate", "5", "--seconds", "5")
    few = figures(capsys, *load, "--max-num-seqs", "1")
    assert figures(capsys, *load, "--max_num_seqs", "1") == few
    assert figures(capsys, *load) != few


def test_simulate_command_prints_a_line_for_each_figure_and_objective(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", *DRAWN, "--pods", "2", "--slo", "ttft_p99=10s,itl_mean=1us"]) == 0
    verdict, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"No: itl_mean is [\d.]+ ms, above its limit of 0.001 ms", verdict)
    assert lines[0].startswith("qwen3-14b-h100: drawn load, ") and lines[0].endswith(
        "; 2 pods, least-requests"
    )
    assert [line.split("|")[1].strip() for line in lines[1:6]] == [
        "",
        "----",
        "TTFT",
        "TPOT",
        "ITL",
    ]
    names = [line.partition(":")[0] for line in lines[7:]]
    assert names[:6] == ["requests", "tokens", "memory of a pod", "KV cache", "running", "steps"]
    assert lines[-2:] == ["ttft_p99 <= 10000 ms: met", "itl_mean <= 0.001 ms: not met"]


def test_command_line_flags_set_the_limits_of_the_simulated_engine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed = ["--num-requests", "40", "--input-tokens", "64", "--output-tokens", "64"]
    free = figures(capsys, *closed)
    assert free["running"]["peak"] == 40
    assert figures(capsys, *closed, "--max-num-seqs", "7")["running"]["peak"] == 7
    tight = [*closed, "--max-model-len", "128", "--num-gpu-blocks-override", "80"]
    assert figures(capsys, *tight)["preemptions"] > 0
    slow = figures(capsys, *closed, "--no-async-scheduling")
    assert slow["duration_s"] != free["duration_s"]
    assert figures(capsys, *closed, "--in-flight=3", "--turnaround=1s")["running"]["peak"] == 3


def test_auto_profile_finishes_a_load_sooner_on_a_faster_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(msgspec.json.encode(SHAPE))
    auto = ["--num-requests", "20", "--profile", "auto", "--model-config", str(config), "--device"]
    fast, slow = (figures(capsys, *auto, device)["duration_s"] for device in ("b200", "l40s"))
    assert fast < slow
    assert "device is also required" in refusal(capsys, "--num-requests=1", "--profile=auto")


def test_pod_sweep_finds_the_smallest_sufficient_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--rate", "40", "--seconds", "10", "--output-tokens", "16", "--processes", "1"]
    argv = [*load, "--sweep", "pods=1:4:1", "--slo", "ttft_p99=500ms"]
    assert figures(capsys, *argv)["fewest"] in (2, 3)
    assert run(argv) == 0
    verdict, head, *_ = capsys.readouterr().out.splitlines()
    assert verdict.startswith("Fewest pods: ") and head.endswith(
        "poisson at 40/s, prompts of 1000:lognormal:0.5 tokens, answers of 16, seed 1; pods, least-requests"
    )


def test_rate_sweep_finds_the_highest_sustainable_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curve.png"
    document = tmp_path / "curve.json"
    load = ["--seconds", "20", "--output-tokens", "16", "--processes", "1"]
    argv = [*load, "--sweep", "rate=5:35:10", "--slo", "ttft_p50=500ms"]
    assert run([*argv, "--json", str(document), "--plot", str(picture)]) == 0
    verdict, _, *lines = capsys.readouterr().out.splitlines()
    assert verdict == "Highest rate: 15 meets ttft_p50 <= 500 ms"
    names = [line.split("|")[1].strip() for line in lines if line]
    assert names == 2 * ["rate", "----", "5", "15", "25", "35"]  # latencies, then the use
    sweep = msgspec.json.decode(document.read_bytes())
    assert [point["meets_slo"] for point in sweep["points"]] == [True, True, False, False]
    assert sweep["highest"] == 15
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run([*load, "--sweep", "rate=1:1:1", "--slo", "ttft_p50=1us"]) == 0
    assert capsys.readouterr().out.startswith("Highest rate: none meets ttft_p50 <= 0.001 ms\n")


def test_sweep_reports_how_many_trace_rows_without_an_answer_were_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trace := tmp_path / "trace.csv").write_text(
        "Timestamp,Request tokens,Response tokens\n0,9,0\n1,9,9\n"
    )
    assert run(["--trace", str(trace), "--sweep", "pods=1:2:1", "--processes", "1"]) == 0
    assert capsys.readouterr().err == f"{trace}: 1 rows without an answer were skipped\n"


def test_repeated_runs_write_identical_charts(tmp_path: Path) -> None:
    pictures = [tmp_path / name for name in ("a.svg", "b.SVG")]
    for picture in pictures:
        assert run([*DRAWN, "--slo", "ttft_p99=1s", "--plot", str(picture)]) == 0
    first, second = (picture.read_bytes() for picture in pictures)
    assert first == second and first.startswith(b"<?xml")


@pytest.mark.parametrize(
    ("argv", "requests", "note"),
    [
        (["--rate", "2"], 120, "note: requests arrive for 60 s;"),
        (["--rate", "0.5"], 100, "note: requests arrive for 200 s;"),
        (["--rate", "2", "--seconds", "10"], 20, ""),
        (["--rate", "2", "--num-requests", "7"], 7, ""),
    ],
)
def test_a_load_with_only_a_rate_has_an_end_which_is_told(
    capsys: pytest.CaptureFixture[str], argv: list[str], requests: int, note: str
) -> None:
    small = ["--arrivals", "constant", "--input-tokens", "20", "--output-tokens", "2"]
    assert run([*argv, *small, "--json", "-"]) == 0
    output = capsys.readouterr()
    assert abs(msgspec.json.decode(output.out)["requests"] - requests) <= 1
    assert output.err.startswith(note)
    assert output.err.count("note:") == bool(note)


def test_device_and_model_imply_the_computed_profile(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--model", "Qwen/Qwen3-8B", "--device", "h100", "--num-requests", "3"]
    assert run(argv) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[1].startswith("auto: ")
    assert "profile auto: " in output.err


def test_prefix_aware_routing_finds_more_cached_tokens_than_random_routing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ["--rate", "20", "--seconds", "5", "--input-tokens", "50", "--prefix-groups", "2"]
    fleet = ["--pods", "4", "--policy"]
    argv = [*load, "--prefix-tokens", "1600", *fleet]
    aware, random = (figures(capsys, *argv, policy) for policy in ("prefix-aware", "random"))
    assert aware["cached_tokens"] > random["cached_tokens"] > 0
    assert aware["ttft_s"]["mean"] < random["ttft_s"]["mean"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "a load is missing: use --trace FILE, or --rate with --seconds, or --num-requests"),
        (["--rate", "5", "--arrivals", "ramp"], "--arrivals ramp requires --seconds"),
        (["--num-requests", "5", "--seconds", "5"], "--seconds and --arrivals require --rate"),
        (["--rate", "0", "--seconds", "5"], "argument --rate: '0' must be a number greater than 0"),
        ([*DRAWN, "--burstiness", "2"], "--burstiness requires --arrivals bursty"),
        ([*DRAWN, "--ramp-from", "2"], "--ramp-from requires --arrivals ramp"),
        (
            ["--rate", "1", "--num-requests", "1", "--arrivals", "ramp"],
            "--arrivals ramp requires --seconds",
        ),
        (
            [*DRAWN, "--prefix-groups", "2"],
            "--prefix-groups and --prefix-tokens must be used together",
        ),
        ([*DRAWN, "--think", "1s"], "--think requires --turns"),
        ([*DRAWN, "--turnaround", "1ms"], "--turnaround requires --in-flight"),
        ([*DRAWN, "--pods", "0"], "argument --pods: '0' must be a whole number from 1 to 10000"),
        ([*DRAWN, "--sweep", "rate=1:2:1"], "--rate cannot be combined with --sweep rate"),
        (
            [*DRAWN, "--sweep", "pods=1:2:1", "--pods", "2"],
            "--pods cannot be combined with --sweep pods",
        ),
        (["--rate", "1e-320", "--seconds", "5"], "'1e-320' must be a number greater than 0"),
        (
            [*DRAWN, "--arrivals", "bursty", "--burstiness", "1e-9"],
            "must be a number from 0.01 to 1,000",
        ),
        (
            [*DRAWN, "--sweep", "pods=1:2:0.5"],
            "argument --sweep: 'pods=1:2:0.5' must contain only whole numbers for pods",
        ),
        (
            [*DRAWN, "--sweep", "pods=1:2:1", "--requests", "x.csv"],
            "--requests applies to a single run",
        ),
        (
            [*DRAWN, "--slo", "ttft=1"],
            "argument --slo: 'ttft=1' must be a comma-separated list of ttft|tpot|itl|e2e_mean|p50|p90",
        ),
        ([*DRAWN, "--json", "x", "--requests", "./x"], "x is specified twice"),
        ([*DRAWN, "--nonsense"], "unknown flag --nonsense"),
        (["--trace", "x.csv", "--seconds", "3"], "--seconds describes a generated load"),
        *FAILURES,
    ],
)
def test_invalid_simulate_flags_are_rejected_with_a_one_line_error(
    argv: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    assert message in refusal(capsys, *argv, status=1 if (argv, message) in FAILURES else 2)


def test_invalid_trace_row_leaves_no_output_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trace := tmp_path / "trace.csv").write_text(HEADER + "0,10,5\n0,1990,11\n")
    document = tmp_path / "x.json"
    earlier_content = b"as it was"
    document.write_bytes(earlier_content)
    flags = [
        f"--json={document}",
        f"--requests={tmp_path / 'x.csv'}",
        f"--plot={tmp_path / 'x.png'}",
    ]
    message = refusal(capsys, f"--trace={trace}", *FEW, *flags)
    assert message.startswith(
        f"{trace}, row 3: the sum of input_tokens 1990 and output_tokens 11 must not exceed"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"trace.csv", "x.json"}
    assert document.read_bytes() == earlier_content


def test_sweep_and_slo_flags_are_parsed() -> None:
    assert read_sweep("rate=0.1:0.5:0.1").values == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert read_sweep("in-flight=1:6:2").values == (1, 3, 5)
    first, second = read_objectives("ttft_p99=500ms, e2e_mean=2s")
    assert (first.latency, first.statistic, first.limit_s, second.limit_s) == (
        "ttft",
        "p99",
        0.5,
        2.0,
    )
    wrong = ("rate", "rate=1:2", "rate=2:1:1", "rate=0:1:1", "rate=1:2:0", "rate=a:b:c", "x=1:2:1")
    for text in (*wrong, "rate=1:2:1e-9", "rate=nan:2:1", "pods=1:20000:5000"):
        with pytest.raises(ValueError, match="must"):
            read_sweep(text)


def test_progress_bar_appears_only_if_the_work_takes_a_long_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    with progress_bar(stream, "read", 8, "bytes") as progress:
        progress(4)
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress_module, "QUIET_S", -1.0)
    with progress_bar(stream, "simulated", 8, "requests") as progress:
        progress(4)
    assert "simulated:  50%" in stream.getvalue() and "4/8" in stream.getvalue()
