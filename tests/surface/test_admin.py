"""Settings change while the server runs: all or none of them, and only those that may."""

from typing import Any

import pytest

from app.core.settings import settings_table
from tests.client import Client

TABLE = settings_table().rows


def test_posting_the_shown_live_settings_changes_nothing(client: Client) -> None:
    shown = client.get("/admin/config").json()
    assert list(shown) == [row.name for row in TABLE]
    assert (shown["model"], shown["max-loras"], shown["inter-token-latency"]) == ("base", 2, "0s")
    open_rows = [
        row.name
        for row in TABLE
        if row.about.live and not row.about.secret and row.name != "fault-rules"
    ]
    live = {name: shown[name] for name in open_rows if shown[name] is not None}
    assert client.post("/admin/config", live).json() == shown
    assert set(live) <= set(client.get("/admin/config/live").json())


def test_setting_change_takes_effect_immediately(client: Client) -> None:
    count_before = client.metric("vllm:time_to_first_token_seconds_bucket", le="0.02")
    changed = client.post("/admin/config", {"time-to-first-token": "30ms"})
    assert changed.json()["time-to-first-token"] == "30ms"
    client.complete()
    assert client.metric("vllm:time_to_first_token_seconds_bucket", le="0.02") == count_before
    client.post("/admin/config", {"time-to-first-token": 0})


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"port": 1}, "setting port: cannot be changed while the server is running"),
        ({"prot": 1}, "unknown setting 'prot'; did you mean 'port'?"),
        ({"inter-token-latency": "fast"}, "must be a duration"),
        (
            {"inter-token-latency-std-dev": "1s"},
            "must not be more than 30 % of inter-token-latency",
        ),
        ({"tool-call-extra-call-probability": 101}, "must be between 0 and 100"),
        ({"max-tool-call-integer-param": -1}, "must not be less than min-tool-call-integer-param"),
    ],
)
def test_invalid_setting_change_changes_nothing(
    client: Client, values: dict[str, Any], line: str
) -> None:
    settings_before = client.get("/admin/config").json()
    answer = client.post("/admin/config", {"prefill-overhead": "5ms", **values})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")
    assert line.replace("'port'", "port") in answer.json()["error"]["message"]
    assert client.get("/admin/config").json() == settings_before


def test_setting_change_that_is_not_a_json_object_is_rejected(client: Client) -> None:
    headers = {"Content-Type": "application/json"}
    for body in (b"", b"{", b"[]", b"null", b'{"a":' * 2000, b"\xff"):
        answer = client.post("/admin/config", data=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")
