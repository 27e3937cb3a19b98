"""The recording of a live server, and the errors of a failed recording."""

import json
import time
from pathlib import Path

import pytest

from app.core.cli import main
from config.files import MAX_FILE_VARIABLE
from tests.evil_server import KINDS, TIMEOUTS_S, evil_server
from tests.running_server import RunningServer
from workbench.runs import record, recording_client
from workbench.runs.benchmark_files import read_recordings


def test_recording_obeys_the_token_and_concurrency_limits(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.csv.gz"
    words = [
        "--target",
        server.url,
        "--rate",
        "60",
        "--seconds",
        "1",
        "--in-flight",
        "4",
        "--seed",
        "2",
    ]
    assert (
        record.run([*words, "--input-tokens", "20-30", "--output-tokens", "5", "--out", str(out)])
        == 0
    )
    [run] = read_recordings(str(out))
    assert len(run.send_s) > 30 and set(run.output_tokens) == {5}
    assert 20 <= min(run.input_tokens) < max(run.input_tokens) <= 30
    moments = sorted([(at_s, 1) for at_s in run.send_s] + [(at_s, -1) for at_s in run.last_s])
    under_way = [sum(step for _, step in moments[: place + 1]) for place in range(len(moments))]
    assert max(under_way) <= 4
    assert f"{out}: {len(run.send_s)} requests" in capsys.readouterr().out


def test_prompts_of_a_group_share_their_prefix(server: RunningServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    out = tmp_path / "run.csv"
    trace.write_text(
        "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens\n0,40,3,a,32\n0.1,50,4,a,32\n"
    )
    assert record.run(["--target", server.url, "--trace", str(trace), "--out", str(out)]) == 0
    [run] = read_recordings(str(out))
    assert (run.input_tokens, run.output_tokens) == ([40, 50], [3, 4])
    prompts = record.plan_requests(record.read_trace(trace), "m", range(100), 1)
    first, second = (json.loads(wanted.body)["prompt"] for wanted in prompts)
    assert (
        first[:32] == second[:32]
        and first[32:] != second[32:40]
        and (len(first), len(second)) == (40, 50)
    )


def test_recording_fails_if_the_server_does_not_know_the_model(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.csv"
    words = [
        "--target",
        server.url,
        "--rate",
        "5",
        "--seconds",
        "1",
        "--model",
        "other",
        "--out",
        str(out),
    ]
    assert record.run(words) == 1
    assert "request 1: HTTP/1.1 404" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize("words", [(), ("--model", "m")], ids=["models", "tokens"])
@pytest.mark.parametrize("kind", KINDS)
def test_server_whose_answers_have_no_end_is_reported_in_one_line(
    kind: str,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(MAX_FILE_VARIABLE, "1")
    monkeypatch.setattr(record, "ANSWER_TIMEOUT_S", TIMEOUTS_S[kind])
    load = ("--rate", "5", "--seconds", "1", "--out", str(tmp_path / "run.csv"))
    with evil_server(kind) as url:
        assert main(["record", "--target", url, *load, *words]) == 1
    assert capsys.readouterr().err.count("error: ") == 1
    assert not (tmp_path / "run.csv").exists()


@pytest.mark.parametrize(
    ("kind", "limit", "value", "reason"),
    [
        ("endless", "MAX_RESPONSE_BYTES", 1 << 20, "the response is larger than 1 MiB"),
        ("drip", "MAX_RESPONSE_S", 0.3, "the response takes longer than 0.3 s"),
    ],
)
def test_stream_without_an_end_is_an_error_of_its_request(
    kind: str, limit: str, value: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_client, limit, value)
    errors: list[str] = []
    sent_counts: list[int] = []
    with evil_server(kind) as url:
        client = recording_client.RecordingClient(
            record.read_target(url),
            {},
            in_flight=1,
            now=time.perf_counter,
            on_send=sent_counts.append,
            on_error=errors.append,
        )
        assert client.run([recording_client.PlannedRequest(0.0, b"{}")]) == []
    assert errors == [reason]
