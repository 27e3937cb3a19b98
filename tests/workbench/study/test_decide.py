"""Changes of a measured fleet beside today's, by the command `plan`."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.cli import command_of
from tests.workbench.study.test_compare import PROFILE, write_truth
from workbench.plan.change_flags import compares_changes
from workbench.plan.plan_flags import make_parser
from workbench.plan_command import run
from workbench.study.command import run as run_study
from workbench.study.folder import read_study

HOSTILE = '</style><script>alert(1)</script> & "m"'


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two pods, whose fleet was compared."""
    folder = tmp_path_factory.mktemp("studies") / "s"
    write_truth(folder, (1.0, 1.0, 1.0))
    path = folder / "measured.json"
    measured = read_study(folder).measured
    for window in measured.windows:
        distribution = window.latencies["ttft_s"]
        count = distribution.count
        distribution.buckets = [(0.02, 0.04, 0.95 * count), (0.04, 0.06, 0.05 * count)]
    path.write_bytes(msgspec.json.encode(measured))
    assert run_study(["compare", str(folder), "--profile", PROFILE]) == 0
    return folder


def decided(study: Path, *words: str) -> dict[str, Any]:
    """Returns the JSON of a decision."""
    path = study.parent / "decision.json"
    assert run(["--study", str(study), *words, "--json", str(path)]) == 0
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def row(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the row of a change."""
    found: dict[str, Any] = next(each for each in document["rows"] if each["name"] == name)
    return found


def effect(document: dict[str, Any], name: str, quantity: str) -> dict[str, Any]:
    """Returns a latency of a row."""
    effects = row(document, name)["effects"]
    found: dict[str, Any] = next(each for each in effects if each["quantity"] == quantity)
    return found


def test_each_change_is_a_row_beside_today(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["rate x2", "pods=1", "policy=prefix-aware", "prefix-caching=off"]
    document = decided(study, "--what-if", *changes)
    assert [each["name"] for each in document["rows"]] == ["today", *changes]
    today = row(document, "today")
    assert today["pods"] == 2
    assert row(document, "pods=1")["price_per_hour"] == today["price_per_hour"] / 2
    assert row(document, "rate x2")["rate_per_s"] == pytest.approx(2 * today["rate_per_s"])
    assert effect(document, "pods=1", "ttft_s")["difference"] > 0.05
    out = capsys.readouterr().out
    assert "| today, simulated " in out
    assert "policy=prefix-aware: not distinguishable from today" in out
    assert "AWS list prices" in out


def test_differences_up_to_the_error_of_the_comparison_are_not_distinguishable(
    study: Path,
) -> None:
    path = study / "comparison.json"
    before = path.read_bytes()
    comparison = json.loads(before)
    for each in comparison["parts"][-1]["rows"]:
        each["window_error"] = 0.6
    path.write_text(json.dumps(comparison))
    try:
        document = decided(study, "--what-if", "pods=1")
        assert document["errors"]["ttft_s"] == 0.6
        cheapest = decided(study)["answer"][0]
    finally:
        path.write_bytes(before)
    assert effect(document, "pods=1", "ttft_s")["error"] == 0.6
    assert abs(effect(document, "pods=1", "ttft_s")["difference"]) < 0.6
    assert cheapest.startswith("Cheapest: 1 instead of 2 pods, 6.88 an hour (50% less)")


def test_fewest_pods_that_are_not_worse_come_with_their_risk(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = decided(study)
    names = [each["name"] for each in document["rows"]]
    assert names == ["today", "pods=1", "rate x1.5"]
    assert "Cheapest: today's pods (2); with 1, TTFT rises by" in capsys.readouterr().out
    document = decided(study, "--max-rise", "0.5")
    names = [each["name"] for each in document["rows"]]
    assert names == ["today", "pods=1", "rate x1.5", "pods=1 rate x1.5"]
    assert "Cheapest: 1 instead of 2 pods, 6.88 an hour (50% less)" in capsys.readouterr().out


def test_overload_is_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = decided(study, "--what-if", "rate x40 pods=1")
    assert row(document, "rate x40 pods=1")["keeps_up"] is False
    assert "cannot keep up" in capsys.readouterr().out


def test_computed_engines_are_compared_with_a_computed_engine_of_today(study: Path) -> None:
    document = decided(study, "--what-if", "device=h200", "kv-cache-dtype=fp8", "prefill-share=0.5")
    assert effect(document, "device=h200", "tpot_s")["difference"] < -0.1
    assert effect(document, "kv-cache-dtype=fp8", "tpot_s")["difference"] < 0.05
    assert row(document, "device=h200")["is_computed"] is True
    assert any("device=h200" in line for line in document["assumptions"])
    assert effect(document, "prefill-share=0.5", "ttft_s")["difference"] > 0.2


def test_shares_are_those_of_measured_bounds(study: Path) -> None:
    shares = decided(study, "--what-if", "pods=1")["rows"][0]["shares"]
    assert [(each["quantity"], each["bound_s"]) for each in shares[:2]] == [
        ("ttft_s", 0.04),
        ("ttft_s", 0.06),
    ]
    assert [each["measured"] for each in shares[:2]] == pytest.approx([0.95, 1.0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--what-if", "device=nope"], "device nope: must be one of"),
        (["--what-if", "max-num-seqs="], "--max-num-seqs"),
        (["--what-if", "pods=3", "loras=x"], "loras"),
        (["--what-if", *["pods=3"] * 51], "at most 50"),
        (["--what-if"], "expected at least one argument"),
        (["--what-if", "pods=3", "--slo", "ttft_p99=1s"], "--slo cannot be combined"),
        (["--frobnicate", "3"], "unknown flag --frobnicate"),
        (["--html", "/nowhere/a.html"], "folder not found"),
    ],
)
def test_wrong_command_line_is_one_line(
    study: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--study", str(study), *words]) in (1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    assert lines[-1].startswith("error: ")


def test_study_must_have_been_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_truth(tmp_path / "s", (1.0, 1.0, 1.0))
    words = ["--study", str(tmp_path / "s"), "--what-if", "pods=1"]
    assert run(words) == 2
    assert "not compared with a simulation" in capsys.readouterr().err
    assert run([*words, "--accept-study", "--profile", PROFILE]) == 0
    assert "not compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff", b"[" * 100_000, b'{"parts": NaN}', b'{"verdict": 1}', b"[]"]
)
def test_broken_comparison_is_one_line(
    study: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = study / "comparison.json"
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        assert run(["--study", str(study), "--accept-study", "--what-if", "pods=1"]) == 1
    finally:
        path.write_bytes(before)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "comparison.json" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "compares"),
    [
        (["--study", "s"], True),
        (["--study=s", "--what-if", "pods=1"], True),
        (["--what-if=pods=1"], True),
        (["--study", "s", "--slo", "ttft_p99=1s"], False),
        (["--study", "s", "--over-time"], False),
        (["--rate", "5"], False),
    ],
)
def test_study_without_an_slo_compares_changes(words: list[str], compares: bool) -> None:
    assert compares_changes(make_parser().table_of(words)) is compares


@pytest.mark.parametrize("flag", ["--max-rise", "--max-requests", "--html"])
def test_flag_of_changes_is_rejected_beside_an_slo(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--model", "m", "--rate", "5", "--slo", "ttft_p99=1s", flag, "100"]) == 2
    assert f"{flag} requires --study, and no SLO" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["--study", "--help"], ["--what-if", "-h"]])
def test_plan_has_one_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = command_of(["plan", *words])
    assert command is not None
    assert command.run(words) == 0
    assert capsys.readouterr().out == make_parser().format_help()


def test_load_that_is_too_large_is_not_simulated(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("workbench.study.decider.MAX_SIMULATED", 1000)
    assert run(["--study", str(study), "--what-if", "pods=1", "rate x10"]) == 2
    assert "'rate x10': 3,000 requests would be simulated" in capsys.readouterr().err


def test_slo_is_passed_on_to_the_usual_plan(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--study", str(study), "--slo", "ttft_p99=2s", "--model", "Qwen/Qwen3-14B"]
    assert run([*words, "--device", "h100", "-tp", "1", "--max-num-seqs", "256"]) == 0
    assert "h100 tp 1 x 1" in capsys.readouterr().out


class _Page(HTMLParser):
    """Collects tags, texts and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_report_has_no_addresses_and_no_markup_of_names(study: Path) -> None:
    path = study / "workload.yaml"
    before = path.read_text()
    path.write_text(before.replace("model: m", f"model: {json.dumps(HOSTILE)}"))
    report = study.parent / "report.html"
    try:
        decided(study, "--what-if", "pods=1", "rate x40 pods=1", "--html", str(report))
    finally:
        path.write_text(before)
    page = _Page()
    page.feed(report.read_text())
    assert "script" not in page.tags
    assert page.addresses == []
    for text in (
        f"What if? {HOSTILE}",
        "Measured",
        "Assumed",
        "study compare",
        "--what-if pods=1",
        "cannot keep up",
        "Requests within the measured bounds",
    ):
        assert text in page.text
