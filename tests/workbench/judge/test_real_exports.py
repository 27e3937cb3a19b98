"""Exports of real tools of a known load: 50 ms to the first token, and 10 ms for each next."""

import json
from pathlib import Path

import pytest

from app.core.cli import main
from workbench.judge.clocks import align
from workbench.judge.exports import read_export
from workbench.judge.matching import Matches, match
from workbench.judge.served import read_journal
from workbench.judge.verdict import answered_pairs, judge
from workbench.runs.tool_requests import Export

EXPORTS = Path(__file__).with_name("exports")
STREAMING = (
    "guidellm-0.8.1.json",
    "vllm-0.32.0.json",
    "inference-perf-0.7.0.json",
    "aiperf-0.13.0.jsonl",
)
ALL = (*STREAMING, "locust-2.47.0.jsonl")


def journal_of(name: str) -> str:
    stem = name.removesuffix(".jsonl").removesuffix(".json")
    return str(EXPORTS / f"{stem}.journal.json")


def matched(name: str) -> tuple[Export, Matches]:
    path = str(EXPORTS / name)
    export = read_export(path)
    return export, match(path, export, read_journal(journal_of(name)))


@pytest.mark.parametrize("name", ALL)
def test_clocks_of_every_export_are_aligned_within_a_millisecond(
    name: str,
) -> None:
    export, matches = matched(name)
    assert len(matches.pairs) == len(export.requests) >= 12
    assert matches.not_served == [] and matches.not_reported == []
    assert matches.method == ("number" if name.startswith("vllm") else "id")
    alignment = align(name, answered_pairs(matches), export.has_unix_times)
    assert alignment.half_width_s < 0.001
    for tool, served in matches.pairs:
        # One way may take as long as the error of the alignment less than it took.
        slack_s = alignment.half_width_s + 0.0001
        assert alignment.to_server(tool.send_s) <= served.arrived_s + slack_s
        assert tool.received_s is not None and served.last_sent_s is not None
        assert alignment.to_server(tool.received_s) >= served.last_sent_s - slack_s


@pytest.mark.parametrize("name", ALL)
def test_tools_that_write_unix_times_share_the_clock_of_a_local_server(
    name: str,
) -> None:
    export, matches = matched(name)
    alignment = align(name, answered_pairs(matches), export.has_unix_times)
    is_monotonic = name.startswith(("vllm", "inference-perf"))
    assert export.has_unix_times is not is_monotonic
    assert alignment.is_same_clock is not is_monotonic
    assert (abs(alignment.difference_s) > 1e9) is is_monotonic


@pytest.mark.parametrize("name", STREAMING)
def test_overhead_excludes_the_time_on_the_server_and_the_network(
    name: str,
) -> None:
    export, matches = matched(name)
    alignment = align(name, answered_pairs(matches), export.has_unix_times)
    verdict, rows = judge(export, matches, alignment, network_s=0.0001)
    assert len(rows) == len(export.requests)
    first = verdict.latencies["TTFT"]
    assert 49.9 <= first.server.p50 < 52
    assert first.tool.p50 > first.server.p50
    assert 9.9 <= verdict.latencies["TPOT"].server.p50 < 10.6
    assert verdict.parts["server: to the first token"].p50 == pytest.approx(50, abs=0.01)
    assert verdict.overhead_ms == pytest.approx(first.added.p50 - 0.1, abs=0.002)
    assert 0.5 < verdict.overhead_ms < 10
    for row in rows:
        assert row.tool_ttft_s is not None and row.server_ttft_s is not None
        assert row.back_s is not None
        # What is added is what was lost on the ways there and back.
        added_s = row.tool_ttft_s - row.server_ttft_s
        assert added_s == pytest.approx(row.out_s + row.back_s, abs=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_judge_command_prints_the_verdict_for_every_tool(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["judge", str(EXPORTS / name), "--journal", journal_of(name), "--rtt-ms", "0.1"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "requests found in the journal" in text
    assert "Clocks: " in text and "overhead of the tool itself" in text
    assert main([*arguments, "--json", "-"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["matched"] == verdict["requests"] > 0
    assert verdict["clock_uncertainty_ms"] < 1
    assert verdict["overhead_ms"] > 0


def test_export_title_names_the_guidellm_version() -> None:
    export, _ = matched("guidellm-0.8.1.json")
    assert export.title == "guidellm 0.8.1"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.999])
def test_truncated_export_is_reported_in_one_line(
    name: str, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (EXPORTS / name).read_bytes().rstrip()
    path = tmp_path / name
    path.write_bytes(content[: int(len(content) * share)])
    assert main(["judge", str(path), "--journal", journal_of(name)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"error: {path}") and "truncated" in line


@pytest.mark.parametrize("name", ALL)
def test_journal_of_another_run_is_rejected_with_a_one_line_error(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "locust-2.47.0.jsonl"
    if name == other:
        other = "guidellm-0.8.1.json"
    path = EXPORTS / name
    assert main(["judge", str(path), "--journal", journal_of(other)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}: ")
    assert "journal" in line
