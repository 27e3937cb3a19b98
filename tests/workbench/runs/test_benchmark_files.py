"""Files of benchmarks, as recordings; and what is refused."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from config import ConfigError
from config.files import MAX_FILE_VARIABLE
from workbench.runs.benchmark_files import read_recordings
from workbench.runs.measured_run import MeasuredRun

LISTS: dict[str, object] = {
    "input_lens": [100, 200], "output_lens": [3, 2], "start_times": [1000.5, 1000.0], "ttfts": [0.2, 0.1],
    "itls": [[0.02, 0.03], [0.04]], "errors": ["", ""],
}  # fmt: skip
VLLM = {
    "backend": "openai",
    "max_concurrency": 64,
    "completed": 2,
    "total_output_tokens": 5,
    **LISTS,
}
CSV = "arrival_s,input_tokens,output_tokens,send_s,first_s,last_s\n"


def read(tmp_path: Path, content: object, name: str = "run.json") -> list[MeasuredRun]:
    path = tmp_path / name
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return read_recordings(str(path))


def refused(tmp_path: Path, content: object, name: str = "run.json") -> str:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, content, name)
    assert name in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


def guidellm(timings: Mapping[str, object], **fields: object) -> dict[str, object]:
    request = {"prompt_tokens": 100, "output_tokens": 3, "info": {"timings": timings}}
    requests = {"successful": [request], "incomplete": [], "errored": [], **fields}
    return {"metadata": {"version": 1}, "benchmarks": [{"requests": requests}]}


def value(number: float, unit: str) -> dict[str, object]:
    return {"value": number, "unit": unit}


METRICS = {
    "time_to_first_token": value(200.0, "ms"), "request_latency": value(0.25, "s"),
    "input_sequence_length": value(100, "tokens"), "output_sequence_length": value(3, "tokens"),
}  # fmt: skip


def aiperf(**changes: object) -> dict[str, object]:
    started = {
        "request_start_ns": 5_000_000_000,
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    return {"metadata": started, "metrics": METRICS, "error": None, **changes}


def test_request_times_are_read_from_vllm_bench_serve_results(
    tmp_path: Path,
) -> None:
    [run] = read(tmp_path, VLLM)
    assert run.send_s == run.arrival_s == [0.0, 0.5]  # in order of arrival, from the first on
    assert run.input_tokens == [200, 100] and run.output_tokens == [2, 3]
    assert run.first_s == pytest.approx([0.1, 0.7]) and run.last_s == pytest.approx([0.14, 0.75])
    assert run.in_flight == 64
    twice = read(tmp_path, json.dumps(VLLM) + "\n" + json.dumps(VLLM) + "\n")
    assert [run.name for run in twice] == ["run line 1", "run line 2"]


@pytest.mark.parametrize(
    "changes, rule",
    [
        ({"ttfts": None}, "--save-detailed"),
        (
            {"start_times": None},
            "has no start_times; vllm bench serve writes them from vLLM 0.15 on",
        ),
        ({"errors": ["", "timed\nout"]}, "request 2 failed (timed out)"),
        (
            {"output_lens": [3, 0]},
            "request 2: input_tokens and output_tokens must be between 1 and 1073741824, not",
        ),
        ({"output_lens": [3, 1 << 31]}, ", not 200 and 2147483648"),
        ({"itls": [[0.02, 0.03]]}, "start_times has 2 entries, but itls has 1"),
        ({"ttfts": [0.2, "soon"]}, "Expected `float`, got `str` - at `$.ttfts[1]`"),
        ({"output_lens": [1, 1]}, "there are no ITLs"),
        (dict.fromkeys(LISTS, []), "contains no requests"),
    ],
)
def test_invalid_vllm_bench_serve_results_are_rejected(
    tmp_path: Path, changes: dict[str, object], rule: str
) -> None:
    document = {name: value for name, value in {**VLLM, **changes}.items() if value is not None}
    assert rule in refused(tmp_path, document)


def test_request_times_are_read_from_old_and_new_guidellm_reports(
    tmp_path: Path,
) -> None:
    for name in ("iteration", "token_iteration"):
        timings = {"request_start": 50.0, f"first_{name}": 50.2, f"last_{name}": 50.25}
        [run] = read(tmp_path, guidellm(timings, incomplete=[{}, {}]))
        assert run.first_s == pytest.approx([0.2]) and run.last_s == pytest.approx([0.25])
        assert (run.input_tokens, run.output_tokens) == ([100], [3])
        assert run.notes == ["2 requests that the end of the run cut off are left out"]
    old = {"prompt_tokens": 9, "output_tokens": 3, "start_time": 1.0}
    old |= {"first_token_time": 1.5, "last_token_time": 2.0}
    [run] = read(tmp_path, {"benchmarks": [{"requests": {"successful": [old]}}]})
    assert (run.first_s, run.last_s) == ([0.5], [1.0])
    failed = refused(tmp_path, guidellm(timings, errored=[{}]))
    assert "errored request 1 failed (errored), but all requests must succeed" in failed
    no_stream = refused(tmp_path, guidellm({"request_start": 1.0}))
    assert "request 1 has no times for its first and last tokens" in no_stream


def test_request_times_of_aiperf_exports_exclude_warmup_requests(tmp_path: Path) -> None:
    warmup = aiperf(metadata={"request_start_ns": 1, "benchmark_phase": "warmup"})
    later = aiperf(metadata={"request_start_ns": 6_000_000_000})
    lines = "\n".join(json.dumps(record) for record in (warmup, later, aiperf()))
    [run] = read(tmp_path, lines, "profile_export.jsonl")
    assert run.send_s == pytest.approx([0.0, 1.0])
    assert run.first_s == pytest.approx([0.2, 1.2]) and run.last_s == pytest.approx([0.25, 1.25])


@pytest.mark.parametrize(
    "changes, rule",
    [
        ({"error": {"code": 500}}, "line 2 failed (failed), but all requests must"),
        ({"metrics": {}}, "line 2 has no times for its first and last tokens"),
        (
            {"metrics": {"time_to_first_token": {"value": 1, "unit": "weeks"}}},
            "the unit must be one of ns, us, ms, s, sec, not 'weeks'",
        ),
    ],
)
def test_invalid_aiperf_exports_are_rejected(
    tmp_path: Path, changes: dict[str, object], rule: str
) -> None:
    lines = json.dumps(aiperf()) + "\n" + json.dumps(aiperf(**changes))
    assert rule in refused(tmp_path, lines)


def test_csv_files_may_be_compressed_and_omit_arrival_or_send_times(tmp_path: Path) -> None:
    for file in ("run.csv", "run.csv.gz"):
        [run] = read(tmp_path, CSV + "0.5,10,3,0.75,1,2\n\n1.5,20,1,1.5,2,2\n", file)
        assert (run.name, run.arrival_s, run.send_s) == ("run", [0.0, 1.0], [0.25, 1.0])
        assert (run.first_s, run.last_s) == ([0.5, 1.5], [1.5, 1.5])
    for name in ("arrival_s", "send_s"):
        [run] = read(
            tmp_path, f"{name},input_tokens,output_tokens,first_s,last_s\n1,10,3,2,3\n", "run.csv"
        )
        assert (run.arrival_s, run.send_s, run.first_s) == ([0.0], [0.0], [1.0])


@pytest.mark.parametrize(
    "text, rule",
    [
        ("", "is empty"),
        (CSV, "contains no requests"),
        ("arrival_s,input_tokens,output_tokens,first_s\n", "line 1: missing column last_s"),
        (CSV + "0,10,3,0,1\n", "line 2 has 5 cells, but the header has 6"),
        (
            CSV + "0,10,3,0,1,2\n0,ten,3,0,1,2\n",
            "line 3: Expected `int`, got `str` - at `$.input_tokens`",
        ),
        (CSV + "0,10,3,0,nan,2\n", "line 2: times must be finite numbers"),
        (CSV + "1,10,3,1,2,3\n0,10,3,0,1,2\n", "line 3: rows must be in order of arrival"),
        (CSV + "1,10,3,0,2,3\n", "line 2: sent at 0 s, before its arrival at 1 s"),
        (CSV + "0,10,3,0,2,1\n", "line 2: sent at 0 s, first token at 2 s, last token at 1 s"),
    ],
)
def test_invalid_csv_files_are_rejected_with_a_one_line_error(
    tmp_path: Path, text: str, rule: str
) -> None:
    assert rule in refused(tmp_path, text, "run.csv")


def test_unknown_benchmark_formats_are_rejected(tmp_path: Path) -> None:
    assert "is not a recognized export from vllm bench serve, GuideLLM, or AIPerf" in refused(
        tmp_path, {"results": []}
    )
    assert "profile_export.jsonl" in refused(
        tmp_path, {"input_config": {}, "request_count": {"avg": 2}}
    )
    assert "is not a JSON object" in refused(tmp_path, "{oops")
    (tmp_path / "run.csv.gz").write_bytes(gzip.compress(b"cut off")[:-9])
    for name in ("nothing.json", "run.csv.gz"):
        with pytest.raises(ConfigError, match="cannot be decompressed|No such file"):
            read_recordings(str(tmp_path / name))


def test_only_documents_and_lines_are_limited_but_not_a_file_of_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_FILE_VARIABLE, "1")
    row = "{0},100,3,{0},{0}.2,{0}.25\n"
    rows = CSV + "".join(row.format(second) for second in range(100_000))
    lines = (json.dumps(aiperf()) + "\n") * 6000
    for name, text, count in (("run.csv", rows, 100_000), ("run.jsonl", lines, 6000)):
        assert len(text) > 2 << 20, "larger than the limit"
        for suffix in ("", ".gz"):
            [run] = read(tmp_path, text, name + suffix)
            assert len(run.send_s) == count, name
    result = json.dumps({**VLLM, "unknown": "x" * (1 << 20)})
    for text in (result, json.dumps(json.loads(result), indent=1)):
        assert "run.json: larger than 1 MiB, the setting max-file-size-mb" in refused(
            tmp_path, text
        )


def test_line_above_the_limit_is_named(tmp_path: Path) -> None:
    long_line = json.dumps({**aiperf(), "unknown": "x" * (16 << 20)})
    text = json.dumps(aiperf()) + "\n" + long_line
    assert "is longer than 16 MiB" in refused(tmp_path, text)
    assert "line 2 is longer than 16 MiB" in refused(tmp_path, CSV + "0," * (9 << 20), "run.csv")
