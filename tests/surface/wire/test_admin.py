"""Settings change while the server runs: all or none of them, and only those that may."""

from __future__ import annotations

from typing import Any

import pytest

from config.settings import TABLE
from tests.hostile.raw_client import Wire, ask
from tests.surface.conftest import Client, served


def test_all_settings_are_shown_and_every_live_one_can_be_set_to_what_it_is(client: Client) -> None:
    shown = client.get("/admin/config").json()
    assert list(shown) == [row.name for row in TABLE]
    assert (shown["model"], shown["max-loras"], shown["inter-token-latency"]) == ("base", 2, "0s")
    open_rows = [row.name for row in TABLE if row.live and not row.secret and row.name != "fault-rules"]
    live = {name: shown[name] for name in open_rows if shown[name] is not None}
    assert client.post("/admin/config", live).json() == shown
    assert set(live) <= set(client.get("/admin/config/live").json())


def test_a_change_takes_effect_at_once(client: Client) -> None:
    before = client.metric("vllm:time_to_first_token_seconds_bucket", le="0.02")
    changed = client.post("/admin/config", {"time-to-first-token": "30ms"})
    assert changed.json()["time-to-first-token"] == "30ms"
    client.complete()
    assert client.metric("vllm:time_to_first_token_seconds_bucket", le="0.02") == before
    client.post("/admin/config", {"time-to-first-token": 0})


def test_a_stream_goes_on_with_the_new_pace(client: Client) -> None:
    client.post("/admin/config", {"inter-token-latency": "1h"})
    with Wire(client.server.port) as wire:
        events = wire.post(ask(max_tokens=3, stream=True)).events()
        next(events)
        client.post("/admin/config", {"inter-token-latency": "0s"})
    client.complete()


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"port": 1}, "setting port: cannot change while the server runs"),
        ({"prot": 1}, "unknown setting 'prot'; did you mean 'port'?"),
        ({"inter-token-latency": "fast"}, "must be a duration"),
        ({"inter-token-latency-std-dev": "1s"}, "must not be more than 30 % of inter-token-latency"),
        ({"failure-injection-rate": 101}, "must be between 0 and 100"),
        ({"failure-types": ["bogus"]}, "must only have"),
        ({"max-tool-call-integer-param": -1}, "must not be less than min-tool-call-integer-param"),
    ],
)
def test_a_wrong_change_changes_nothing(client: Client, values: dict[str, Any], line: str) -> None:
    before = client.get("/admin/config").json()
    answer = client.post("/admin/config", {"prefill-overhead": "5ms", **values})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")
    assert line.replace("'port'", "port") in answer.json()["error"]["message"]
    assert client.get("/admin/config").json() == before


def test_what_is_no_object_is_refused(client: Client) -> None:
    json, url = {"Content-Type": "application/json"}, client.server.url + "/admin/config"
    for body in (b"", b"{", b"[]", b"null", b'{"a":' * 2000, b"\xff"):
        answer = client.session.post(url, data=body, headers=json, timeout=20)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")


def test_a_change_for_all_ranks_reaches_them_all_or_none() -> None:
    with served("--data-parallel-size", "3") as client:

        def itl(rank: int) -> str:
            url = f"http://127.0.0.1:{client.server.port + rank}/admin/config"
            shown: str = client.session.get(url, timeout=20).json()["inter-token-latency"]
            return shown

        client.post("/admin/config", {"inter-token-latency": "1ms"})
        assert [itl(rank) for rank in range(3)] == ["1ms", "0s", "0s"]
        told = client.post("/admin/config?ranks=all", {"inter-token-latency": "5ms"}).json()
        assert [told[str(rank)]["inter-token-latency"] for rank in range(3)] == ["5ms"] * 3
        assert [itl(rank) for rank in range(3)] == ["5ms"] * 3
        client.post("/admin/config", {"inter-token-latency": "50ms"})
        # Less than 30 % of the first rank's 50 ms, more than that of the others' 5 ms.
        refused = client.post("/admin/config?ranks=all", {"inter-token-latency-std-dev": "10ms"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "BadRequestError")
        assert "Rank 1" in refused.json()["error"]["message"]
        assert client.get("/admin/config").json()["inter-token-latency-std-dev"] == "0s"
        assert set(client.get("/admin/config?ranks=all").json()) == {"0", "1", "2"}
        assert set(client.post("/admin/drain?ranks=all").json()) == {"0", "1", "2"}
        last = f"http://127.0.0.1:{client.server.port + 2}/ready"
        assert client.session.get(last, timeout=20).status_code == 503
