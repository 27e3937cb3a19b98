"""Exports of load tools have one reader: recordings and the judge see the same requests."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from config import ConfigError
from workbench.judge.exports import read_export
from workbench.runs.benchmark_files import read_recordings


class Row(Struct):
    """A request of a run; times in whole milliseconds, which all formats keep."""

    send_ms: int
    ttft_ms: int
    rest_ms: int
    input_tokens: int
    output_tokens: int

    @property
    def times_s(self) -> tuple[float, float, float]:
        """When the request was sent, and when the first and the last token came."""
        first_ms = self.send_ms + self.ttft_ms
        return self.send_ms / 1000, first_ms / 1000, (first_ms + self.rest_ms) / 1000


def vllm(rows: Sequence[Row]) -> str:
    result = {
        "start_times": [row.send_ms / 1000 for row in rows],
        "ttfts": [row.ttft_ms / 1000 for row in rows],
        "itls": [[row.rest_ms / 2000] * 2 for row in rows],
        "input_lens": [row.input_tokens for row in rows],
        "output_lens": [row.output_tokens for row in rows],
    }
    return json.dumps(result)


def guidellm(rows: Sequence[Row], make_row: Callable[[Row], dict[str, object]]) -> str:
    requests = []
    for row in rows:
        tokens = {"prompt_tokens": row.input_tokens, "output_tokens": row.output_tokens}
        requests.append({**tokens, **make_row(row)})
    return json.dumps({"benchmarks": [{"requests": {"successful": requests}}]})


def guidellm_0_3(rows: Sequence[Row]) -> str:
    names = ("start_time", "first_token_time", "last_token_time")
    return guidellm(rows, lambda row: dict(zip(names, row.times_s, strict=True)))


def guidellm_0_4(rows: Sequence[Row]) -> str:
    names = ("request_start", "first_iteration", "last_iteration")
    return guidellm(
        rows,
        lambda row: {
            "scheduler_info": {"request_timings": dict(zip(names, row.times_s, strict=True))}
        },
    )


def guidellm_0_6(rows: Sequence[Row]) -> str:
    names = ("request_start", "first_token_iteration", "last_token_iteration")
    return guidellm(
        rows, lambda row: {"info": {"timings": dict(zip(names, row.times_s, strict=True))}}
    )


def aiperf(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        metrics = {
            "time_to_first_token": {"value": row.ttft_ms * 1000, "unit": "us"},
            "request_latency": {"value": row.ttft_ms + row.rest_ms, "unit": "ms"},
            "input_sequence_length": {"value": row.input_tokens, "unit": "tokens"},
            "output_sequence_length": {"value": row.output_tokens, "unit": "tokens"},
        }
        metadata = {"request_start_ns": row.send_ms * 1_000_000}
        lines.append(json.dumps({"metadata": metadata, "metrics": metrics}))
    return "\n".join(lines)


FORMATS = [vllm, guidellm_0_3, guidellm_0_4, guidellm_0_6, aiperf]
ROWS = st.lists(
    st.builds(
        Row,
        send_ms=st.integers(0, 10_000_000),
        ttft_ms=st.integers(1, 100_000),
        rest_ms=st.integers(0, 1_000_000),
        input_tokens=st.integers(1, 100_000),
        output_tokens=st.integers(2, 100_000),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda row: row.send_ms,
)


@pytest.mark.parametrize("render", FORMATS)
@settings(deadline=None, max_examples=30)
@given(rows=ROWS)
def test_recording_and_judge_read_the_same_requests(
    render: Callable[[Sequence[Row]], str], rows: list[Row]
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "export.json")
        path.write_text(render(rows))
        [run] = read_recordings(str(path))
        export = read_export(str(path))
    for row, request in zip(rows, export.requests, strict=True):
        times_s = (request.send_s, request.first_s, request.last_s)
        assert times_s == pytest.approx(row.times_s, abs=1e-6), request.place
        assert (request.input_tokens, request.output_tokens) == (
            row.input_tokens,
            row.output_tokens,
        ), request.place
    rows.sort(key=lambda row: row.send_ms)
    start_s = rows[0].send_ms / 1000
    recorded_s = list(zip(run.send_s, run.first_s, run.last_s, strict=True))
    for row, recorded in zip(rows, recorded_s, strict=True):
        expected_s = [time_s - start_s for time_s in row.times_s]
        assert recorded == pytest.approx(expected_s, abs=1e-6), row
    assert run.input_tokens == [row.input_tokens for row in rows], (
        "input tokens in order of sending"
    )


FAILURES = [
    (
        '{"start_times": [1, 2], "ttfts": [0.1, 0], "itls": [[0.1], []], "errors": ["", "lost"],'
        ' "input_lens": [5, 5], "output_lens": [2, 0]}',
        "request 2 failed (lost)",
    ),
    (
        '{"benchmarks": [{"requests": {"successful": [], "errored": [{"info": {"error": "lost",'
        ' "timings": {"request_start": 1}}}]}}]}',
        "errored request 1 failed (lost)",
    ),
    (
        '{"metadata": {"request_start_ns": 5}, "metrics": {}, "error": {"message": "lost"}}',
        "line 1 failed (lost)",
    ),
]


@pytest.mark.parametrize(("text", "failure"), FAILURES)
def test_failed_request_is_kept_for_the_judge_and_rejects_a_recording(
    text: str, failure: str, tmp_path: Path
) -> None:
    path = tmp_path / "export.json"
    path.write_text(text)
    assert read_export(str(path)).requests[-1].error == "lost", "the judge reports the error"
    with pytest.raises(ConfigError) as error:
        read_recordings(str(path))
    assert f"{failure}, but all requests must succeed" in str(error.value), "it names the request"
