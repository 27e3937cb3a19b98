"""The plugins of examples/plugins, each in a real server or command."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from app.core.settings import load
from app.extensions.plugins.registry import HOOKS, registry_of
from tests.running_server import ROOT, RunningServer, running_server

EXAMPLES = ROOT / "examples" / "plugins"
ALL = sorted(EXAMPLES.glob("*.py"))
TABLE = "tokens,ms\n1,10\n8192,10\n"
"""Every step takes 10 ms."""


def example(name: str) -> tuple[str, str]:
    return "--plugin", str(EXAMPLES / f"{name}.py")


def chat(
    server: RunningServer, text: str, headers: dict[str, str] | None = None, **fields: Any
) -> Any:
    body = {"messages": [{"role": "user", "content": text}], **fields}
    return requests.post(
        f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=20
    )


def reply_text(server: RunningServer, text: str, headers: dict[str, str] | None = None) -> str:
    return str(chat(server, text, headers).json()["choices"][0]["message"]["content"])


def report(server: RunningServer) -> dict[str, Any]:
    answer = requests.get(f"{server.url}/admin/plugins", timeout=20).json()
    return {plugin_row["name"]: plugin_row for plugin_row in answer["plugins"]}


def test_every_hook_has_an_example() -> None:
    registry = registry_of(load(["--plugin", *map(str, ALL), "--no-installed-plugins"], {}))
    assert {hook for hooks in registry.guards.values() for hook in hooks} == set(HOOKS)


@pytest.fixture(scope="module")
def latin() -> Iterator[RunningServer]:
    with running_server(*example("pig_latin"), env={"SIM_PIG_LATIN_SHARE": "0"}) as server:
        yield server


def test_example_plugin_replies_only_to_requests_with_its_header(latin: RunningServer) -> None:
    assert reply_text(latin, "Hello world", {"X-Pig-Latin": "please"}) == "ellohay orldway"
    assert "ellohay" not in reply_text(latin, "Hello world")
    assert report(latin)["pig-latin"]["hooks"]["reply"]["errors"] == 0


def test_streamed_plugin_reply_is_counted_token_by_token(
    latin: RunningServer,
) -> None:
    please = {"X-Pig-Latin": "please"}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = chat(latin, "Hello world", please, **options).text.split("\n\n")
    events = [
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")
    ]
    text = "".join(
        event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]
    )
    tokens = requests.post(f"{latin.url}/tokenize", json={"prompt": text}, timeout=20).json()[
        "count"
    ]
    assert text == "ellohay orldway"
    assert events[-1]["usage"]["completion_tokens"] == tokens + 1  # the end of text
    answer = chat(latin, "Hello world", please, max_tokens=2).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


def test_plugin_setting_can_be_read_and_changed_over_http(latin: RunningServer) -> None:
    config = f"{latin.url}/admin/config"
    assert requests.get(config, timeout=20).json()["pig-latin-share"] == 0
    assert "pig-latin-share" in requests.get(f"{config}/live", timeout=20).json()
    assert requests.post(config, json={"pig-latin-share": 101}, timeout=20).status_code == 400
    try:
        assert requests.post(config, json={"pig-latin-share": 100}, timeout=20).ok
        assert reply_text(latin, "Hello world") == "ellohay orldway"
        assert report(latin)["pig-latin"]["settings"] == {"pig-latin-share": 100}
    finally:
        requests.post(config, json={"pig-latin-share": 0}, timeout=20)


@pytest.fixture(scope="module")
def counting() -> Iterator[RunningServer]:
    flags = (
        *example("tenants"),
        *example("as_long_as_the_prompt"),
        "--as-long-as-the-prompt-factor",
        "2",
    )
    with running_server(*flags) as server:
        yield server


def test_plugin_reports_equal_counts_in_headers_metrics_and_its_route(
    counting: RunningServer,
) -> None:
    answers = [chat(counting, "Hi", {"X-Tenant": name}) for name in ("ann", "bob", "ann")]
    assert [answer.headers["X-Tenant-Requests"] for answer in answers] == ["1", "1", "2"]
    assert requests.get(f"{counting.url}/admin/tenants", timeout=20).json() == {"ann": 2, "bob": 1}
    metrics = requests.get(f"{counting.url}/metrics", timeout=20).text
    assert 'tenants_requests_total{tenant="ann"} 2' in metrics
    assert "vllm:num_requests_running" in metrics


def test_plugin_middleware_rejects_a_request_without_a_required_header(
    counting: RunningServer,
) -> None:
    config = f"{counting.url}/admin/config"
    assert requests.post(config, json={"tenants-required": True}, timeout=20).ok
    try:
        refused = chat(counting, "Hi")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Tenant")
    finally:
        requests.post(config, json={"tenants-required": False}, timeout=20)


def test_plugin_determines_the_number_of_reply_tokens(counting: RunningServer) -> None:
    usage = [chat(counting, "word " * words).json()["usage"] for words in (5, 20)]
    assert [counts["completion_tokens"] for counts in usage] == [
        2 * counts["prompt_tokens"] for counts in usage
    ]
    limited = chat(counting, "word " * 20, max_tokens=7).json()
    assert limited["usage"]["completion_tokens"] == 7
    assert limited["choices"][0]["finish_reason"] == "length"


def test_plugin_fault_sets_the_error_message_and_the_retry_after_header() -> None:
    with running_server(
        *example("rush_hour"), "--rush-hour-every", "1h", "--rush-hour-lasts", "1h"
    ) as server:
        busy = chat(server, "Hi")
        assert (busy.status_code, busy.json()["error"]["message"]) == (503, "It is rush hour.")
        assert 3000 < int(busy.headers["Retry-After"]) <= 3600
        assert requests.post(
            f"{server.url}/admin/config", json={"rush-hour-lasts": "0s"}, timeout=20
        ).ok
        assert chat(server, "Hi").status_code == 200


def command(*words: str) -> str:
    """What `understudy` prints."""
    whole = [sys.executable, "-m", "app", *words]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stderr
    return done.stdout


def simulated(*flags: str) -> dict[str, Any]:
    """One request, with 100 tokens in a step each, in `understudy simulate`."""
    load_flags = ("--num-requests", "1", "--input-tokens", "50", "--output-tokens", "100")
    simulation: dict[str, Any] = json.loads(command("simulate", *load_flags, "--json", "-", *flags))
    return simulation


def test_simulate_command_uses_the_step_cost_of_a_plugin(
    tmp_path: Path,
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(TABLE)
    with_table = simulated(*example("step_table"), "--step-table-file", str(table))
    assert with_table["itl_s"]["p50"] == pytest.approx(0.01, abs=1e-6)
    table.write_text(TABLE.replace(",10", ",30"))
    slower = simulated(*example("step_table"), "--step-table-file", str(table))
    assert slower["itl_s"]["p50"] == pytest.approx(0.03, abs=1e-6)
    assert slower["e2e_s"]["mean"] - with_table["e2e_s"]["mean"] == pytest.approx(0.02 * 100)
    assert with_table["profile"] == "qwen3-14b-h100, steps by step-table"
    assert simulated()["itl_s"]["p50"] not in (0.01, 0.03)
    flags = (
        *example("step_table"),
        "--step-table-file",
        str(table),
        "--pods",
        "2",
        "--processes",
        "2",
    )
    spread = simulated(*flags, "--num-requests", "4", "--policy", "round-robin")
    assert spread["itl_s"]["p50"] == pytest.approx(0.03, abs=1e-6)


def test_routing_policy_of_a_plugin_can_be_used_in_a_fleet(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    flags = ("--pods", "2", "--requests", "6", "--groups", "2", "--prefix-tokens", "64", "--no-png")
    command("fleet", *flags, *example("sticky"), "--policies", "sticky", "--json", str(path))
    [figures] = json.loads(path.read_text())["policies"]
    assert (figures["policy"], figures["requests"], figures["failed"]) == ("sticky", 6, 0)


def test_plugins_command_lists_hooks_and_settings() -> None:
    output = command("plugins", *example("tenants"), "--no-tenants-required")
    assert "    hooks: keeps_fast_path, middleware, routes, metrics" in output.splitlines()
    assert "--tenants-most (whole number, SIM_TENANTS_MOST; now '100')" in output
