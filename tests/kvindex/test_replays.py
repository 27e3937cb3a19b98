"""Asking a publisher for what was missed: what is sent, what is taken for an answer, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from app.kvcache.event_sender import END
from app.kvindex import streams
from app.kvindex.streams import Replay, Replayed, ReplayLimits, Replays
from app.kvindex.subscriber import Context
from tests.kvindex.publisher import ends

LIMITS = ReplayLimits()
FEW = ReplayLimits(at_once=2)
PAYLOAD = b"payload"


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    made.destroy(linger=0)


class Publisher:
    """Answers with any frames. It is in the same process: what it has sent is there."""

    endpoint = "inproc://replays"

    def __init__(self, context: Context) -> None:
        self._router = context.socket(zmq.ROUTER)
        self._router.bind(self.endpoint)
        self._client = b""

    def asked(self) -> list[bytes]:
        """The next request, without who sent it."""
        self._client, *frames = self._router.recv_multipart()
        return frames

    def answer(self, *frames: bytes) -> None:
        if not self._client:
            self.asked()
        self._router.send_multipart([self._client, *frames])

    def publish(self, *sequences: int, payload: bytes = PAYLOAD) -> None:
        for sequence in sequences:
            self.answer(b"", b"topic", number(sequence), payload)

    def close(self) -> None:
        self._router.close(linger=0)


@pytest.fixture
def publisher(context: Context) -> Iterator[Publisher]:
    made = Publisher(context)
    yield made
    made.close()


@pytest.fixture
def replay(context: Context, publisher: Publisher) -> Iterator[Replay]:
    made = Replay(context, publisher.endpoint, 258, 0.0, LIMITS)
    yield made
    made.close()


def number(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


def step(replay: Replay, now: float = 0.0) -> list[int]:
    return [batch.sequence for batch in replay.step(now)]


def test_it_asks_for_all_batches_from_a_number_on(publisher: Publisher, replay: Replay) -> None:
    assert publisher.asked() == [b"", number(258)]


def test_batches_come_as_they_were_published_until_the_end(publisher: Publisher, replay: Replay) -> None:
    publisher.answer(b"", b"topic", number(1 << 40), PAYLOAD)
    publisher.answer(b"", number(7), b"")
    assert replay.step(0.0) == [Replayed(1 << 40, PAYLOAD, b"topic"), Replayed(7, b"", b"")]
    assert replay.state == "running"


@pytest.mark.parametrize("end", [(b"", b"", END, b""), (b"", END, b"")], ids=["with a topic", "without"])
def test_behind_the_end_nothing_is_read(publisher: Publisher, replay: Replay, end: tuple[bytes, ...]) -> None:
    publisher.publish(1)
    publisher.answer(*end)
    publisher.publish(2)
    assert step(replay) == [1] and replay.state == "complete"
    assert replay.step(99.0) == [] and replay.state == "complete"


def test_what_is_no_answer_is_passed_over(publisher: Publisher, replay: Replay) -> None:
    for frames in (
        (b"",),
        (b"", PAYLOAD),
        (b"", END[:-1], PAYLOAD),
        (b"", END + b"\xff", PAYLOAD),
        (b"x", number(3), PAYLOAD),
        (b"x", b"topic", number(3), PAYLOAD),
        (b"", b"topic", number(3), PAYLOAD, b""),
    ):
        publisher.answer(*frames)
    publisher.publish(5)
    assert step(replay) == [5] and replay.state == "running"


def test_a_step_reads_so_many_batches(
    publisher: Publisher, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_A_STEP", 3)
    assert replays_in_steps(publisher, replay, b"") == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("most", "expected"), [(20, [[0, 1], [2, 3], [4, 5], [6, 7], []]), (21, [[0, 1, 2], [3, 4, 5], [6, 7]])]
)
def test_a_step_reads_so_many_bytes(
    publisher: Publisher,
    replay: Replay,
    most: int,
    expected: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "MOST_BYTES_A_STEP", most)
    assert replays_in_steps(publisher, replay, bytes(10)) == expected


def replays_in_steps(publisher: Publisher, replay: Replay, payload: bytes) -> list[list[int]]:
    publisher.publish(*range(8), payload=payload)
    publisher.answer(b"", END, b"")
    found = list[list[int]]()
    while replay.state == "running" and len(found) < 9:
        found.append(step(replay))
    return found


@pytest.mark.parametrize(("answered", "fails"), [([], 2.0), ([1.0], 3.0), ([1.5, 3.0, 4.5], 6.5)])
def test_silence_is_a_failure(
    publisher: Publisher, replay: Replay, answered: list[float], fails: float
) -> None:
    for now in answered:
        publisher.publish(1)
        assert step(replay, now) == [1] and replay.step(now) == []
    assert replay.step(fails - 0.01) == [] and replay.state == "running"
    assert replay.step(fails) == [] and replay.state == "failed"


def test_an_answer_without_end_is_a_failure_as_soon_as_it_pauses(
    publisher: Publisher, replay: Replay
) -> None:
    for second in range(119):
        publisher.publish(second)
        assert step(replay, second) == [second]
    assert replay.step(119.9) == [] and replay.state == "running"
    publisher.publish(119)
    assert step(replay, 130.0) == [119] and replay.state == "running"
    assert replay.step(120.0) == [] and replay.state == "failed"


def test_what_was_begun_or_could_not_be_is_closed() -> None:
    context: Context = zmq.Context()
    Replay(context, "tcp://127.0.0.1:1", 0, 0.0, LIMITS).close()
    for endpoint in ("nonsense", "tcp://127.0.0.1"):
        with pytest.raises(zmq.ZMQError):
            Replay(context, endpoint, 0, 0.0, LIMITS)
    assert ends(context)


def test_a_few_replays_run_at_once(context: Context, publisher: Publisher) -> None:
    replays = Replays(context, FEW)
    running = [replays.begin(publisher.endpoint, start, 0.0) for start in range(3)]
    assert [replay is not None for replay in running] == [True, True, False]
    for replay in running[:2]:
        assert replay is not None
        replays.end(replay)
        for nonsense in ("nonsense", "tcp://127.0.0.1"):
            with pytest.raises(zmq.ZMQError):
                replays.begin(nonsense, 0, 0.0)
    again = [replays.begin(publisher.endpoint, start, 0.0) for start in range(3)]
    assert [replay is not None for replay in again] == [True, True, False]
    for replay in again[:2]:
        assert replay is not None
        replays.end(replay)


def test_without_a_context_there_are_none() -> None:
    replays = Replays(None)
    assert not replays.possible and replays.begin("tcp://127.0.0.1:1", 0, 0.0) is None
    assert replays.size_bytes == 0
