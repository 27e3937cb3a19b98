"""The moments of a request in the journal."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient

from app.core.server.http.response import Response, StreamingBody
from app.extensions.journal.entries import utc_text
from app.extensions.journal.journal import Journal
from app.extensions.journal.sends import MAX_SENDS, SendLog, stamped
from app.extensions.journal.wall_clock import RENEWAL_S, WallClock
from tests.application import app_of, request

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CLOCK_S = 0.001
"""Greatest difference between two conversions of a moment to the wall clock."""


@pytest.fixture
def client() -> FlaskClient:
    flags = ("--journal=10", "--seed=1", "--force-dummy-tokenizer", "--enable-kvcache")
    delays = ("--time-to-first-token=20ms", "--inter-token-latency=5ms")
    return app_of(*flags, *delays).test_client()


def entries(client: FlaskClient) -> list[dict[str, Any]]:
    answer: Any = client.get("/admin/journal").json
    rows: list[dict[str, Any]] = answer["entries"]
    return rows


def test_stream_timestamps_are_chronological_unix_seconds(client: FlaskClient) -> None:
    before_s = time.time()
    message = {"role": "user", "content": "Hello"}
    body = {"messages": [message], "max_tokens": 4, "stream": True}
    events = client.post(CHAT, json=body).get_data().split(b"\n\n")[:-1]
    after_s = time.time()
    [entry] = entries(client)
    names = ("arrived_s", "queued_s", "scheduled_s", "first_s", "last_s")
    moments = [entry[name] for name in names]
    assert moments == sorted(moments)
    assert before_s - CLOCK_S <= entry["arrived_s"] and entry["last_s"] <= after_s + CLOCK_S
    assert entry["first_s"] - entry["arrived_s"] >= 0.019
    assert entry["last_s"] - entry["arrived_s"] >= 0.034
    assert entry["at"] == utc_text(entry["arrived_s"])
    sends = entry["sends_s"]
    # A busy machine merges the events of several tokens into one write.
    assert sends == sorted(sends) and 1 <= len(sends) <= len(events)
    # The wall clock may have been read again between the two moments.
    assert entry["last_s"] - CLOCK_S <= sends[-1] <= after_s + CLOCK_S
    assert entry["preemptions"] == 0


def test_non_streamed_response_has_one_send_time_after_its_last_token(client: FlaskClient) -> None:
    client.post(COMPLETIONS, json={"prompt": "Hello", "max_tokens": 3})
    [entry] = entries(client)
    [sent_s] = entry["sends_s"]
    # A late process wakes once for all tokens. The wall clock may have been read again meanwhile.
    assert entry["last_s"] >= entry["first_s"]
    assert sent_s >= entry["last_s"] - CLOCK_S


def test_rejected_request_has_only_arrival_and_response_times(client: FlaskClient) -> None:
    client.post(COMPLETIONS, json={"prompt": "Hello", "max_tokens": -3})
    [entry] = entries(client)
    assert entry["status"] == 400
    [sent_s] = entry["sends_s"]
    assert sent_s >= entry["arrived_s"]
    names = ("queued_s", "scheduled_s", "first_s", "last_s", "cached_tokens", "preemptions")
    assert [entry[name] for name in names] == [None] * len(names)


def test_cached_tokens_of_several_prompts_are_summed(client: FlaskClient) -> None:
    prompts = ["one two three " * 30, "four five six " * 30]
    for _ in range(2):
        client.post(COMPLETIONS, json={"prompt": prompts, "max_tokens": 2, "n": 3})
    first, second = entries(client)
    usage = second["usage"]["prompt_tokens"]
    assert first["cached_tokens"] < second["cached_tokens"] <= usage
    assert second["cached_tokens"] > usage / 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_response_id_in_the_journal_equals_the_id_in_the_response(
    client: FlaskClient, path: str, stream: bool
) -> None:
    fields = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    headers = {"X-Request-Id": "own-0"}
    body = {**fields, "max_tokens": 2, "n": 2, "stream": stream}
    answer = client.post(path, json=body, headers=headers).get_data(as_text=True)
    [entry] = entries(client)
    assert entry["id"] == "own-0"
    assert entry["response_id"].endswith("cmpl-own-0")
    assert f'"id":"{entry["response_id"]}"' in answer


class Clock:
    """Returns prepared readings, and advances by a time for each reading."""

    def __init__(self, steps_s: list[float]) -> None:
        self.now_s = 100.0
        self._steps_s = steps_s

    def monotonic(self) -> float:
        self.now_s += self._steps_s.pop(0) if self._steps_s else 0.0
        return self.now_s

    def unix(self) -> float:
        return self.now_s + 1_000.0


def test_clock_offset_is_taken_from_the_fastest_pair_of_readings() -> None:
    # The process is paused for 40 ms between the readings of the first pair.
    clock = Clock(steps_s=[0.0, 0.04])
    wall_clock = WallClock(clock.monotonic, clock.unix)
    assert wall_clock.offset_s(clock.now_s) == 1_000.0


def test_clock_offset_follows_an_adjusted_system_clock() -> None:
    clock = Clock(steps_s=[])
    shift_s = 0.0

    def unix() -> float:
        return clock.unix() + shift_s

    wall_clock = WallClock(clock.monotonic, unix)
    assert wall_clock.offset_s(clock.now_s) == 1_000.0
    shift_s = 5.0
    assert wall_clock.offset_s(clock.now_s) == 1_000.0
    clock.now_s += RENEWAL_S
    assert wall_clock.offset_s(clock.now_s) == 1_005.0


def test_response_with_an_empty_body_has_no_send_time() -> None:
    journal = Journal(10, now=Clock(steps_s=[]).monotonic, unix=Clock(steps_s=[]).unix)
    for body in (b"", b"answer"):
        context = request(CHAT, "POST", body=b"{}")
        journal.begin(context)
        journal.end(context, Response(body))
    rows = [msgspec.json.decode(row) for row in journal.rows(None, "", None)]
    assert [row["sends_s"] for row in rows] == [[], [1100.0]]


class Pieces(StreamingBody):
    """A body of `count` pieces."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __iter__(self) -> Iterator[bytes]:
        yield b""
        for _ in range(self._count):
            yield b"piece"


def test_number_of_recorded_send_times_is_limited() -> None:
    clock = Clock(steps_s=[1.0] * (MAX_SENDS + 7))
    grown: list[int] = []
    log = SendLog(clock.monotonic, grown.append)
    body = stamped(Pieces(MAX_SENDS + 7), log)
    assert isinstance(body, StreamingBody)
    sent_bytes = sum(map(len, body))
    assert body.bytes_sent == sent_bytes == 5 * (MAX_SENDS + 7)
    assert len(log.moments) == MAX_SENDS
    assert log.moments[-1] == 100.0 + MAX_SENDS + 7
    assert sum(grown) >= MAX_SENDS * 8 - 256
