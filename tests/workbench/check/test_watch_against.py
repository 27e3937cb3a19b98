"""`--against`: selectors are tried on the metrics of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config.declaration import ConfigError
from tests.http_server import Handler, serving
from tests.workbench.check.conftest import Check
from workbench.check.command import run
from workbench.check.watch.live import series_of

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 0.0
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="qwen"} 1.0
"""


@contextmanager
def answering(content: bytes, status: int = 200) -> Iterator[str]:
    """Yields the URL of a server with this answer for each path."""

    class Answer(Handler):
        def do_GET(self) -> None:
            self.reply(status, content)

    with serving(Answer) as port:
        yield f"http://127.0.0.1:{port}"


def write_rules(folder: Path, *expressions: str) -> None:
    rules = [{"alert": "A", "expr": expression} for expression in expressions]
    (folder / "rules.yaml").write_text(json.dumps({"groups": [{"rules": rules}]}))


@pytest.mark.check
def test_selectors_without_series_are_found(check: Check, tmp_path: Path) -> None:
    write_rules(
        tmp_path,
        'vllm:num_requests_running{model_name="qwen",pod="a"}',
        'vllm:num_requests_running{model_name=~"$model"}',
        'vllm:request_success_total{finished_reason=~"stop|length"}',
        "vllm:current_qps",
        'vllm:num_requests_running{model_name="llama"}',
        'vllm:request_success_total{finished_reason="length"}',
        "vllm:kv_block_lifetime_seconds_sum",
        "vllm:gpu_cache_usage_perc",
    )
    with answering(METRICS.encode()) as url:
        findings = check(f"--against {url}/metrics rules.yaml")
        assert check(f"--against {url} rules.yaml") == findings
    live = [each["message"].split(" exports ")[1] for each in findings if each["code"] == "W815"]
    assert live == [
        "no vllm:num_requests_running with model_name='llama'",
        "no vllm:request_success_total with finished_reason='length'",
        "no vllm:kv_block_lifetime_seconds_sum",
    ]
    assert [each["code"] for each in findings if each["code"] != "W815"] == ["W802"]


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (METRICS.encode(), 404, "returned status 404"),
        (b"<html>", 200, "is not in the text format of Prometheus"),
        (b"\xff\xfe", 200, "is not in the text format of Prometheus"),
        (b"a{ 1", 200, "is not in the text format of Prometheus"),
        (b"", 200, "has no metrics of vLLM"),
        (b"up 1\n", 200, "has no metrics of vLLM"),
    ],
)
def test_server_without_metrics_is_one_line(
    content: bytes, status: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rules(tmp_path, "vllm:num_requests_running")
    with answering(content, status) as url:
        assert run(["--against", url, str(tmp_path / "rules.yaml")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --against: ") and error.count("\n") == 1
    assert reason in error


def test_server_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rules(tmp_path, "vllm:num_requests_running")
    for url in ("http://127.0.0.1:1", "nonsense", "http://[::1"):
        assert run(["--against", url, str(tmp_path / "rules.yaml")]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_against_needs_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text("vllm serve Qwen/Qwen3-8B\n")
    assert run(["--against", "http://127.0.0.1:1", str(tmp_path / "run.sh")]) == 2
    assert "--against needs dashboards" in capsys.readouterr().err


def test_hostile_metrics_are_refused() -> None:
    for content in (b"vllm:x{" * 100_000, b'vllm:x{a="' + b"\\" * 100_001, b"\0" * 1_000):
        with pytest.raises(ConfigError):
            series_of("http://a/metrics", content)
    many = b"vllm:x 1\n" * 100_001
    with pytest.raises(ConfigError, match="more than 100000 samples"):
        series_of("http://a/metrics", many)
