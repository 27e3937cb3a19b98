"""Faults by the settings of a real server."""

from __future__ import annotations

from pathlib import Path

import requests

from tests.faults.client import CHAT, TEXT, got, question
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
