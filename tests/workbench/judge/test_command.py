"""The command judge: one line for each mistake, and its outputs."""

import csv
import json
import re
from pathlib import Path

import pytest

from app.core.cli import main
from tests.workbench.judge.test_real_exports import EXPORTS, journal_of

LOCUST = "locust-2.47.0.jsonl"
VLLM = "vllm-0.32.0.json"
INFERENCE_PERF = "inference-perf-0.7.0.json"
AIPERF = "aiperf-0.13.0.jsonl"


def error_of(
    capsys: pytest.CaptureFixture[str], export: Path, *flags: str, journal: str = journal_of(LOCUST)
) -> str:
    assert main(["judge", str(export), "--journal", journal, *flags]) != 0
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        (
            "{}",
            "is not a recognized export from GuideLLM, AIPerf, inference-perf, vllm bench serve,",
        ),
        ("[]", "contains no requests"),
        ("[1]", "is not a list of JSON objects"),
        ("hello", "is not a JSON object"),
        ('{"benchmarks": []}', "contains no benchmarks"),
        ('{"benchmarks": [{}]}', "contains no requests"),
        (
            '{"benchmarks": [{"requests": {"successful": [{}]}}]}',
            "has no info.timings.request_start",
        ),
        ('{"ttfts": [], "itls": [], "start_times": []}', "contains no requests"),
        ('{"ttfts": [1.0], "itls": [], "start_times": [1.0]}', "1 entries, but itls has 0"),
        ('{"total_output_tokens": 3}', "--save-detailed"),
        ('{"start_time": "x", "response_time": 3}', "line 1: start_time must be a number"),
        ('{"start_time": 1, "response_time": null}', "has no response_time"),
        ('{"start_time": 1, "response_time": -3}', "times must be in this order"),
        ('{"start_time": 1e999, "response_time": 3}', "inf is not a valid time in seconds"),
        ('{"start_time": 1e300, "response_time": 3}', "1e+300 is not a valid time in seconds"),
        ('{"ttfts": [-1.0], "itls": [[]], "start_times": [1.0]}', "times must be in this order"),
        ('{"metadata": {}, "metrics": {}}', "has no metadata.request_start_ns"),
        ('{"input_config": {}}', "use profile_export.jsonl"),
    ],
)
def test_error_for_an_invalid_export_states_the_position(
    content: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "export.json"
    path.write_text(content)
    line = error_of(capsys, path)
    assert line.startswith(f"error: {path}") and reason in line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a journal with times"),
        ('{"entries": []}', "the journal is empty"),
        ('{"0": {"entries": []}, "1": {"entries": []}}', "the journal is empty"),
        ('{"entries": [{"id": "x", "route": "/"}]}', "missing required field `arrived_s`"),
        (
            '{"entries": [{"id": "x", "route": "/", "arrived_s": 1e300}]}',
            "not a valid time in seconds",
        ),
    ],
)
def test_invalid_journal_is_reported_in_one_line(
    content: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal.json"
    path.write_text(content)
    line = error_of(capsys, EXPORTS / LOCUST, journal=str(path))
    assert line.startswith(f"error: {path}") and reason in line


def test_missing_files_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.json"
    assert "No such file" in error_of(capsys, missing)
    assert "No such file" in error_of(capsys, EXPORTS / LOCUST, journal=str(missing))


def test_unmatched_requests_without_ids_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (EXPORTS / LOCUST).read_text().splitlines()]
    export = tmp_path / "export.jsonl"
    export.write_text("\n".join(json.dumps({**row, "request_id": None}) for row in rows[1:]))
    assert "send X-Request-Id" in error_of(capsys, export)


def test_export_without_ids_is_matched_by_the_order_of_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = json.loads((EXPORTS / INFERENCE_PERF).read_text())
    for request in requests:
        request["response"] = ""
    export = tmp_path / "export.json"
    export.write_text(json.dumps(requests))
    assert main(["judge", str(export), "--journal", journal_of(INFERENCE_PERF), "--json=-"]) == 0
    assert json.loads(capsys.readouterr().out)["matched_by"] == "order"


def test_clock_change_during_the_run_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((EXPORTS / VLLM).read_text())
    starts = document["start_times"]
    document["start_times"] = [*starts[:6], *(start + 7 for start in starts[6:])]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(document))
    line = error_of(capsys, path, journal=journal_of(VLLM))
    assert "clocks in the export and the journal do not match" in line


def test_failed_requests_are_counted_but_excluded_from_the_latencies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (EXPORTS / LOCUST).read_text().splitlines()
    row = json.loads(lines[0])
    row |= {"exception": "read timed out", "response_time": 5000.0}
    path = tmp_path / "export.jsonl"
    path.write_text("\n".join([json.dumps(row), *lines[1:]]))
    assert main(["judge", str(path), "--journal", journal_of(LOCUST)]) == 0
    text = capsys.readouterr().out
    assert "Failed at the tool: 1, of which the server answered 1 with 200" in text
    assert main(["judge", str(path), "--journal", journal_of(LOCUST), "--json=-"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["latencies"]["E2E"]["tool"]["max"] < 1000


def test_warmup_requests_of_aiperf_are_excluded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (EXPORTS / AIPERF).read_text().splitlines()
    row = json.loads(lines[0])
    row["metadata"]["benchmark_phase"] = "warmup"
    path = tmp_path / "export.jsonl"
    path.write_text("\n".join([json.dumps(row), *lines[1:]]))
    assert main(["judge", str(path), "--journal", journal_of(AIPERF)]) == 0
    text = capsys.readouterr().out
    assert "11 of 11 requests" in text
    assert "In the journal before or after the run: 1" in text


def test_request_rows_are_written_as_csv(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    export = EXPORTS / VLLM
    arguments = ["judge", str(export), "--journal", journal_of(VLLM), "--out", str(out)]
    assert main([*arguments, "--json", str(tmp_path / "verdict.json")]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["place"] for row in rows] == [f"{export}: request {n}" for n in range(1, 13)]
    assert all(row["id"].startswith("bench-") for row in rows)
    assert all(float(row["tool_ttft_s"]) > float(row["server_ttft_s"]) for row in rows)


def test_judge_command_fails_if_the_median_added_time_exceeds_max_added_ms(
    capsys: pytest.CaptureFixture[str],
) -> None:
    export = EXPORTS / VLLM
    arguments = ["judge", str(export), "--journal", journal_of(VLLM)]
    assert main([*arguments, "--max-added-ms", "100"]) == 0
    capsys.readouterr()
    assert main([*arguments, "--max-added-ms", "0.5"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the median added time is 1.") and "exceeds 0.5" in line


def test_requests_that_guidellm_never_sent_are_counted_in_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "guidellm-0.8.1.json"
    document = json.loads((EXPORTS / name).read_text())
    requests = document["benchmarks"][0]["requests"]
    requests["incomplete"] = [{"request_id": "never", "info": {"timings": {}}}]
    path = tmp_path / name
    path.write_text(json.dumps(document))
    assert main(["judge", str(path), "--journal", journal_of(name)]) == 0
    text = capsys.readouterr().out
    assert "12 of 12 requests" in text
    assert "Never sent by the tool: 1" in text


def test_clock_difference_to_another_host_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (EXPORTS / LOCUST).read_text().splitlines()]
    for row in rows:
        row["start_time"] += 3.5
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert main(["judge", str(path), "--journal", journal_of(LOCUST)]) == 0
    clocks = r"Clocks: the server's is 3,(499|500)\.\d\d ms behind the tool's, within 0\.\d\d ms"
    assert re.search(clocks, capsys.readouterr().out)


def test_all_benchmarks_of_a_guidellm_sweep_share_one_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "guidellm-0.8.1.json"
    document = json.loads((EXPORTS / name).read_text())
    requests = document["benchmarks"][0]["requests"]["successful"]
    document["benchmarks"] = [
        {"requests": {"successful": requests[:5]}},
        {"requests": {"successful": requests[5:]}},
    ]
    requests[6]["response_id"] = "unknown"
    path = tmp_path / name
    path.write_text(json.dumps(document))
    assert main(["judge", str(path), "--journal", journal_of(name)]) == 0
    text = capsys.readouterr().out
    assert "11 of 12 requests" in text
    assert "Not in the journal: 1 (successful request 2 of benchmark 2)" in text
