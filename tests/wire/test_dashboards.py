"""Dashboards and alerts, asked of a real Prometheus that scrapes real servers."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.needs import PROMETHEUS
from tests.running_server import free_port, running_server
from tests.test_dashboards import DASHBOARDS, MONITORING, QUERIES

PATIENCE_S = 30.0
INTERVAL = "200ms"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes three servers, of which clients have asked
    something.
    """
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        fails = '[{"action": "error", "status": 503, "every": 2}]'
        latency = ("--time-to-first-token", "5ms", "--inter-token-latency", "1ms")
        cached = stack.enter_context(running_server("--enable-kvcache", *latency))
        failing = stack.enter_context(running_server("--fault-rules", fails, *latency))
        indexer = stack.enter_context(
            running_server("--role", "indexer", "--kv-index-bind", f"tcp://127.0.0.1:{free_port()}")
        )
        urls = [cached.url, failing.url, indexer.url]
        port = free_port()
        stack.enter_context(scraping(folder, urls, port))
        address = f"http://127.0.0.1:{port}"
        _until(lambda: query_values(address, "sum(up)") == [3.0], "Prometheus scrapes all servers")
        generate(urls[:2])
        time.sleep(1)  # a few scrapes more
        yield address


@contextmanager
def scraping(folder: Path, urls: list[str], port: int) -> Iterator[None]:
    """A Prometheus with our configuration, but for the targets and how often; until the end of the
    block.
    """
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    targets = [url.removeprefix("http://") for url in urls]
    job["static_configs"] = [{"targets": targets, "labels": {"role": "server"}}]
    config["global"] = {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(MONITORING / "alerts.yml", folder)
    assert PROMETHEUS
    files = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    command = [PROMETHEUS, *files, f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
            process.terminate()
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def generate(urls: list[str]) -> None:
    """Chats and completions, one after another, over two seconds and more:

    rates need two scrapes.
    """
    end = time.monotonic() + 2.0
    body = {
        "messages": [{"role": "user", "content": "Tell me of the sea. " * 20}],
        "max_tokens": 20,
    }
    while time.monotonic() < end:
        for url in urls:
            requests.post(f"{url}/v1/chat/completions", json=body, timeout=20)
            requests.post(
                f"{url}/v1/completions", json={"prompt": "Once", "max_tokens": 5}, timeout=20
            )


def _until(holds: Any, condition: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, condition
        time.sleep(0.1)


def query_values(address: str, query: str) -> list[float]:
    """The values that Prometheus has for a query; none when it does not answer yet."""
    try:
        reply = requests.get(f"{address}/api/v1/query", {"query": query}, timeout=20)
    except (requests.ConnectionError, requests.Timeout):
        return []
    if reply.status_code == 503:  # it is starting
        return []
    assert reply.status_code == 200, reply.text
    return [float(series["value"][1]) for series in reply.json()["data"]["result"]]


@pytest.mark.prometheus
@pytest.mark.parametrize("query", QUERIES)
def test_every_dashboard_panel_has_data(prometheus: str, query: str) -> None:
    expression = (
        query.replace("$model_name", ".*").replace("$job", ".+").replace("$__rate_interval", "30s")
    )
    assert "$" not in expression
    values = query_values(prometheus, expression)
    assert values and any(value == value for value in values), expression  # NaN differs from itself


@pytest.mark.prometheus
def test_dashboard_variables_have_values(prometheus: str) -> None:
    for dashboard in DASHBOARDS.values():
        for variable in dashboard["templating"]["list"]:
            labels = re.fullmatch(r"label_values\((\S+), (\w+)\)", variable["query"]["query"])
            assert labels and query_values(prometheus, f"count by ({labels[2]}) ({labels[1]})")


@pytest.mark.prometheus
def test_alerts_are_loaded_and_their_queries_have_data(prometheus: str) -> None:
    rules = requests.get(f"{prometheus}/api/v1/rules", timeout=20).json()["data"]["groups"][0][
        "rules"
    ]
    assert len(rules) == 7 and {rule["health"] for rule in rules} == {"ok"}
    for rule in rules:
        series = re.sub(r"\s(>|==)\s[\d.]+$", "", rule["query"])
        assert series != rule["query"] and query_values(prometheus, series), rule["name"]
    failing = next(rule for rule in rules if rule["name"] == "RequestsFail")
    assert failing["state"] in ("pending", "firing")
