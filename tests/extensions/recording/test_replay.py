"""Answers are replayed byte by byte at their recorded times, on the virtual clock."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest

from app.core.base.clock.timer_wheel import LEAD_S, SLOTS_PER_S, TimerWheel
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response
from app.extensions.journal.journal import Journal
from app.extensions.recording.exchange import Exchange
from app.extensions.recording.library import Recording
from app.extensions.recording.replay import Replay, ReplayServices
from app.shared.virtual_clock import VirtualClock
from config.settings import ServerSettings
from tests.application import request
from tests.extensions.recording.recordings import CHAT, JSON_HEADERS, chat, exchange, written

STREAM = [(0.25, b"data: 1\n\n"), (0.25, b"data: 2\n\n"), (1.5, b"data: [DONE]\n\n")]
SLOT_S = 1 / SLOTS_PER_S


@contextmanager
def replaying(
    path: Path, exchanges: Sequence[Exchange], clock: VirtualClock, **options: Any
) -> Iterator[Replay]:
    """A middleware that answers from `exchanges`; settings are `given`."""
    file = written(path / "recording", exchanges)
    recording = Recording(file, options.get("replay_miss") == "nearest")
    services = ReplayServices(
        body_limits=BodyLimits.from_settings(ServerSettings()),
        wheel=TimerWheel(clock),
        now=clock.now,
        journal=options.get("journal", Journal(0)),
        has_keys=lambda: False,
        bears_key=bool,  # a context is true
    )
    replay = Replay(recording, services, options.get("replay_miss", "simulate"))
    try:
        yield replay
    finally:
        recording.close()


def asking(body: Any, path: str = CHAT, method: str = "POST", **headers: str) -> RequestContext:
    return request(
        path,
        method,
        {"content-type": "application/json", **headers},
        body=json.dumps(body).encode(),
    )


def came(clock: VirtualClock, response: Response, until_s: float) -> list[tuple[float, bytes]]:
    pieces: list[tuple[float, bytes]] = []

    def read() -> None:
        for piece in response.body:
            assert isinstance(piece, bytes)
            pieces.append((clock.now(), piece))

    reader = gevent.spawn(read)
    while clock.now() < until_s:
        gevent.sleep(0)
        clock.advance(SLOT_S)
    gevent.sleep(0)
    reader.kill()
    response.close()
    return pieces


def test_chunks_are_replayed_at_their_recorded_times(tmp_path: Path) -> None:
    clock = VirtualClock(100.0)
    recorded = exchange(chat("Hi", stream=True), *STREAM, head_s=0.1, end_s=1.5)
    with replaying(tmp_path, [recorded], clock) as replay:
        context = asking(chat("Hi", stream=True))
        context.arrival_s = 100.0
        response = replay.begin(context)
        assert response is not None
        pieces = came(clock, response, 105.0)
    assert [piece for _, piece in pieces] == [b"", *(data for _, data in STREAM)]
    for (moment_s, _), due_s in zip(pieces, [0.1, 0.25, 0.25, 1.5], strict=True):
        assert -LEAD_S <= moment_s - 100 - due_s <= 3 * SLOT_S


def test_non_streamed_response_is_sent_at_its_recorded_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    recorded = exchange(chat("Hi"), (2.0, b"{}"), headers=[("content-length", "7"), *JSON_HEADERS])
    with replaying(tmp_path, [recorded], clock) as replay:
        waiting = gevent.spawn(replay.begin, asking(chat("Hi")))
        gevent.sleep(0)
        clock.advance(1.99)
        gevent.sleep(0)
        assert not waiting.ready()
        clock.advance(0.02)
        response = waiting.get(timeout=5)
    assert (response.body, response.status) == (b"{}", 200)
    assert response.headers == {"Content-Length": "2", "Content-Type": "application/json"}


def test_replay_omits_recorded_server_headers_and_secret_headers(tmp_path: Path) -> None:
    headers = [
        *(("server", "uvicorn"), ("date", "then"), ("x-request-id", "7"), ("set-cookie", "***")),
        *(("vary", "a"), ("Vary", "b"), ("Transfer-Encoding", "chunked")),
    ]
    with replaying(tmp_path, [exchange({}, (0, b"1"), headers=headers)], VirtualClock()) as replay:
        response = replay.begin(asking({}))
    assert response is not None
    assert response.headers == {"X-Request-Id": "7", "Vary": "a, b"}
    headers = [("content-type", "text/event-stream; charset=utf-8")]
    with replaying(tmp_path, [exchange({}, (0, b"1"), headers=headers)], VirtualClock()) as replay:
        response = replay.begin(asking({}))
    assert response is not None
    assert "X-Accel-Buffering" not in response.headers, "vLLM sends none"


def test_replay_miss_setting_can_reject_unrecorded_requests(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    with replaying(tmp_path, [exchange(chat("Hi"), (0, b"1"))], clock) as replay:
        assert replay.begin(asking(chat("Ho"))) is None
        assert replay.begin(asking(chat("Hi"), "/admin/config")) is None
    with replaying(
        tmp_path, [exchange(chat("Hi"), (0, b"1"))], clock, replay_miss="not-found"
    ) as replay:
        with pytest.raises(ApiError) as refused:
            replay.begin(asking(chat("Ho")))
        assert (refused.value.status, refused.value.type) == (404, "NotFoundError")
        assert replay.begin(asking({}, "/admin/config")) is None
        assert replay.begin(asking({}, "/v1/models", "GET")) is None
        report = replay.report()
    assert (report["equal"], report["nearest"], report["missed"]) == (0, 0, 1)


def test_nearest_policy_returns_the_most_similar_recorded_response(
    tmp_path: Path,
) -> None:
    with replaying(
        tmp_path, [exchange(chat("Hi"), (0, b"1"))], VirtualClock(), replay_miss="nearest"
    ) as replay:
        response = replay.begin(asking(chat("Ho")))
        assert response is not None
        assert response.body == b"1"
        report = replay.report()
    assert (report["equal"], report["nearest"], report["answers"]) == (
        0,
        1,
        [{"line": 2, "times": 1}],
    )


def test_journal_contains_the_text_and_usage_of_recorded_responses(tmp_path: Path) -> None:
    journal = Journal(10)
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    parts: list[dict[str, Any]] = [
        {"delta": {"content": "One "}},
        {"delta": {"content": "two."}},
        {"delta": {}},
    ]
    parts[-1]["finish_reason"] = "stop"
    events = [{"choices": [part], "usage": None} for part in parts] + [
        {"choices": [], "usage": usage}
    ]
    stream = (
        b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
        + b"data: [DONE]\n\n"
    )
    whole = {
        "choices": [{"text": "Whole.", "finish_reason": "stop"}],
        "usage": usage | {"more": None},
    }
    recorded = [
        exchange(chat("stream"), (0, stream[:50]), (0, stream[50:])),
        exchange(chat("whole"), (0, json.dumps(whole).encode()), headers=JSON_HEADERS),
        exchange(chat("other"), (0, b"[1]"), headers=JSON_HEADERS),
    ]
    with replaying(tmp_path, recorded, VirtualClock(), journal=journal) as replay:
        for text in ("stream", "whole", "other"):
            context = asking(chat(text))
            journal.begin(context)
            response = replay.begin(context)
            assert response is not None
            journal.end(context, response)
            response.close()
    rows = [json.loads(bytes(row)) for row in journal.rows(None, "", None)]
    assert [(row["text"], row["usage"]) for row in rows] == [
        ("One two.", usage),
        ("Whole.", usage),
        (None, None),
    ]
    assert rows[0]["model"] == "m"


def test_replay_aborts_a_response_that_was_aborted_in_the_recording(tmp_path: Path) -> None:
    clock = VirtualClock()
    broken = exchange(chat("Hi"), (0, b"1"), is_broken=True, end_s=1.0)
    with replaying(tmp_path, [broken], clock) as replay:
        response = replay.begin(asking(chat("Hi")))
        assert response is not None
        pieces = iter(response.body)
        assert [next(pieces), next(pieces)] == [b"", b"1"]  # type: ignore[list-item]
        remaining = gevent.spawn(next, pieces, None)
        gevent.sleep(0)
        clock.advance(1.01)
        with pytest.raises(ConnectionResetError):
            remaining.get(timeout=5)
        response.close()


def test_thousands_of_due_chunks_do_not_block_the_event_loop(tmp_path: Path) -> None:
    clock = VirtualClock()
    recorded = exchange(chat("Hi"), *[(0.0, b"data: 1\n\n")] * 4000)
    turns = 0

    def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0)

    with replaying(tmp_path, [recorded], clock) as replay:
        response = replay.begin(asking(chat("Hi")))
        assert response is not None
        counter = gevent.spawn(others)
        assert sum(len(piece) for piece in response.body if isinstance(piece, bytes)) == 36_000
        counter.kill()
        response.close()
    assert turns > 40
