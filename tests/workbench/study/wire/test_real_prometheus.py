"""Studies of real servers, that a real Prometheus scrapes, or that are asked for their metrics."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

from tests.needs import PROMETHEUS
from tests.running_server import free_port, running_server
from workbench.study.command import run

PATIENCE_S = 40.0
LATENCY = ("--time-to-first-token", "5ms", "--inter-token-latency", "1ms")
PROMPT = list(range(10, 130))
ANSWER_TOKENS = 20
REQUESTS = 12


@pytest.fixture
def servers() -> Iterator[list[str]]:
    """The addresses of two servers."""
    with running_server(*LATENCY) as first, running_server(*LATENCY) as second:
        yield [first.url, second.url]


def complete(urls: list[str], count: int) -> None:
    """Sends requests of equal lengths to each server."""
    body = {"prompt": PROMPT, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    for _ in range(count):
        for url in urls:
            reply = requests.post(f"{url}/v1/completions", json=body, timeout=20)
            assert reply.status_code == 200


def query(address: str, expression: str) -> float:
    """The first value of an instant query; 0 without one."""
    try:
        reply = requests.get(f"{address}/api/v1/query", {"query": expression}, timeout=20)
    except requests.RequestException:
        return 0.0
    if reply.status_code != 200:
        return 0.0
    result = reply.json()["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


@pytest.fixture
def prometheus(servers: list[str], tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes the servers each second."""
    assert PROMETHEUS
    targets = [url.removeprefix("http://") for url in servers]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "pods", "static_configs": [{"targets": targets}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        PROMETHEUS,
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(address, "sum(up)", 2)
            yield address
        finally:
            process.terminate()
            process.wait(20)


def wait_for(address: str, expression: str, value: float) -> None:
    """Waits until a query has a value, at least."""
    deadline = time.monotonic() + PATIENCE_S
    while query(address, expression) < value:
        assert time.monotonic() < deadline, expression
        time.sleep(0.2)


def check_requests(folder: Path) -> None:
    """Checks that a study has all requests, and their lengths."""
    windows = yaml.safe_load((folder / "workload.yaml").read_text())["windows"]
    assert sum(window["requests"] for window in windows) == pytest.approx(2 * REQUESTS)
    for window in windows:
        if window["requests"]:
            assert window["input_tokens"]["mean"] == pytest.approx(len(PROMPT))
            assert window["output_tokens"]["mean"] == pytest.approx(ANSWER_TOKENS)
    fleet = yaml.safe_load((folder / "fleet.yaml").read_text())
    assert sum(group["pods"] for group in fleet["groups"]) == 2


@pytest.mark.prometheus
def test_study_of_a_real_prometheus_has_all_requests(
    prometheus: str, servers: list[str], tmp_path: Path
) -> None:
    wait_for(prometheus, "count(vllm:request_prompt_tokens_count)", 2)
    start_s = time.time()
    time.sleep(2)
    complete(servers, REQUESTS)
    wait_for(prometheus, "sum(vllm:request_prompt_tokens_count)", 2 * REQUESTS)
    time.sleep(2)
    length_s = int(time.time() - start_s)
    folder = tmp_path / "study"
    words = ["take", "--prometheus", prometheus, "--range", f"{length_s}s", "--step", "1s"]
    assert run([*words, "--out", str(folder)]) == 0
    check_requests(folder)
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["resets"] == []
    selected = "sum(increase(vllm:request_prompt_tokens_count[1h]))"
    assert query(prometheus, selected) > 0
    words += ["--selector", 'model_name="another"', "--out", str(tmp_path / "other")]
    assert run(words) == 1


@pytest.mark.prometheus
def test_error_of_a_real_prometheus_is_one_line(
    prometheus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["take", "--prometheus", prometheus, "--selector", 'a=~"("', "--out", str(tmp_path)]
    assert run(words) == 1
    message = capsys.readouterr().err
    assert "error parsing regexp" in message
    assert message.count("\n") == 1
