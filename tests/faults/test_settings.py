"""Faults by the settings of a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests

from tests.faults.client import CHAT, TEXT, ask, got, question
from tests.running_server import running_server


def post(url: str, path: str) -> requests.Response:
    return requests.post(url + path, json=question(path, False), timeout=20)


def test_at_a_rate_of_hundred_every_request_fails_as_named_and_nothing_else_does() -> None:
    flags = ("--failure-injection-rate", "100", "--failure-types", "rate_limit", "model_not_found")
    with running_server(*flags) as server:
        answers = [post(server.url, path) for path in (CHAT, TEXT) for _ in range(12)]
        found = {(answer.status_code, answer.json()["error"]["type"]) for answer in answers}
        assert found == {(429, "RateLimitError"), (404, "NotFoundError")}
        assert requests.get(server.url + "/v1/models", timeout=20).status_code == 200
        assert requests.post(server.url + "/tokenize", json={"prompt": "a"}, timeout=20).status_code == 200


def test_rules_in_a_yaml_file_strike_whom_they_name(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        "fault-rules:\n"
        "- {action: error, status: 503, api: completions, every: 2}\n"
        "- {action: disconnect, after: 2, headers: {X-Team: chaos}}\n"
    )
    with running_server("--config", str(path)) as server:
        assert [post(server.url, TEXT).status_code for _ in range(4)] == [200, 503, 200, 503]
        assert [post(server.url, CHAT).status_code for _ in range(4)] == [200] * 4
        broken = got(server.port, CHAT, True, X_Team="chaos")
        assert not broken.whole and len(broken.chunks) == 2
        assert got(server.port, CHAT, True, X_Team="order").whole


def test_a_wrong_rule_stops_the_start() -> None:
    with (
        pytest.raises(RuntimeError, match="rule 1: no action 'explode'"),
        running_server("--fault-rules", json.dumps([{"action": "explode"}])),
    ):
        pass


def test_a_change_of_settings_holds_from_the_next_request_on() -> None:
    with running_server() as server:

        def change(**values: object) -> int:
            named = {name.replace("_", "-"): value for name, value in values.items()}
            return requests.post(server.url + "/admin/config", json=named, timeout=20).status_code

        assert post(server.url, TEXT).status_code == 200
        assert change(failure_injection_rate=100, failure_types=["server_error"]) == 200
        assert post(server.url, TEXT).status_code == 503
        assert change(fault_rules=[{"action": "error", "status": 418, "every": 2}]) == 200
        assert [post(server.url, TEXT).status_code for _ in range(4)] == [503, 418, 503, 418]
        assert change(fault_rules=[{"action": "explode"}], failure_injection_rate=0) == 400
        assert change(failure_types=["bogus"]) == 400
        assert post(server.url, TEXT).status_code == 503
        assert change(fault_rules=None, failure_injection_rate=0) == 200
        assert post(server.url, TEXT).status_code == 200


def test_the_seed_decides_which_requests_fail() -> None:
    def failed() -> list[bool]:
        with running_server("--failure-injection-rate", "50", "--seed", "5") as server:
            return [ask(server.port, TEXT, False).status != 200 for _ in range(20)]  # type: ignore[union-attr]

    first = failed()
    assert first == failed() and set(first) == {True, False}
