"""What an operator does to the engine's process, and what it tells the index of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
import zmq

from app.engine.kvcache.endpoints import PublisherSettings
from app.engine.kvcache.events import AllBlocksCleared, BlockStored, EventBatch, KVEvent
from app.engine.kvcache.hashing import BlockHasher, low64
from tests.llm.process import EngineProcess, Worker, engine_process
from tests.llm.tiny import prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

WANTED = prompts(6, seed=9)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[EngineProcess]:
    with engine_process(folder) as running:
        yield running


@pytest.fixture
def worker(engine: EngineProcess) -> Iterator[Worker]:
    made = Worker(engine.options.endpoint)
    made.greet()
    made.command("resume")
    yield made
    made.command("wake_up")
    made.close()
    engine.check()


def test_a_pause_lets_nothing_begin_and_what_runs_go_on_or_end(worker: Worker, other: Worker) -> None:
    assert worker.command("pause").error is None
    other.generate(1, WANTED[0])
    other.until(lambda: other.loads[-1].waiting == 1)
    assert other.loads[-1].paused and 1 not in other.said
    assert worker.command("resume").error is None
    assert len(other.whole(1)[0]) == 16
    for mode in ("keep", "abort"):
        other.generate(1, WANTED[0], 300)
        other.until(lambda: other.loads[-1].running == 1)
        worker.command("pause", mode=mode)
        last = other.wait(1)[0]
        assert last.finish == ("length" if mode == "keep" else "abort")
        assert (len(other.whole(1)[0]) == 300) == (mode == "keep")
        worker.command("resume")


def test_a_pause_can_wait_for_what_runs(worker: Worker, other: Worker) -> None:
    other.generate(1, WANTED[0], 100)
    other.until(lambda: other.loads[-1].running == 1)
    worker.command("pause", mode="wait")
    assert worker.loads[-1].running == 0
    other.until(lambda: other.is_over(1), patience_s=5)
    worker.command("resume")
    other.generate(2, WANTED[0], 900)
    other.until(lambda: other.loads[-1].running == 1)
    number = worker.ask("pause", mode="wait")
    worker.command("resume")
    worker.answer(number)  # who resumes ends the waiting
    other.abort(2)


@pytest.mark.parametrize("level", [1, 2])
def test_after_sleep_it_says_the_same(worker: Worker, other: Worker, level: int) -> None:
    worker.generate(1, WANTED[0])
    expected = worker.whole(1)
    other.generate(1, WANTED[1], 200)
    other.until(lambda: len(other.said.get(1, [])) > 5)
    assert worker.command("sleep", level=level).error is None
    assert worker.loads[-1].sleep_level == level and worker.loads[-1].running == 0
    worker.generate(2, WANTED[0])
    worker.until(lambda: worker.loads[-1].waiting == 2)
    worker.command("wake_up", tags=("weights",))
    assert worker.loads[-1].sleep_level == level and 2 not in worker.said
    worker.command("wake_up", tags=("kv_cache",))
    assert worker.loads[-1].sleep_level is None
    assert worker.whole(2) == expected
    other.wait(1)
    assert other.said[1][-1].preemptions == 1
    slept = other.whole(1)
    other.generate(3, WANTED[1], 200)
    assert other.whole(3) == slept


def test_sleep_of_level_0_pauses(worker: Worker) -> None:
    worker.command("sleep", level=0)
    assert (worker.loads[-1].sleep_level, worker.loads[-1].paused) == (0, True)
    worker.generate(1, WANTED[0])
    worker.command("resume")
    assert (worker.loads[-1].sleep_level, worker.loads[-1].paused) == (None, False)
    assert len(worker.whole(1)[0]) == 16


def test_a_part_that_does_not_sleep_wakes_nothing(worker: Worker) -> None:
    worker.command("sleep", level=1)
    assert worker.command("wake_up", tags=("weights", "brain")).value is False
    assert worker.command("wake_up", tags=("weights",)).value is False
    assert worker.command("wake_up", tags=("kv_cache",)).value is True


# KV events.


class Subscriber:
    """Who indexes blocks."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.subscribe("kv@")
        self._socket.connect(endpoint)
        self._decode = msgspec.msgpack.Decoder(EventBatch).decode
        self.events: list[KVEvent] = []
        self.sequences: list[int] = []

    def hear(self) -> None:
        while self._socket.poll(50):
            topic, sequence, payload = self._socket.recv_multipart()
            assert topic == b"kv@pod@tiny"
            self.sequences.append(int.from_bytes(sequence, "big"))
            self.events += self._decode(payload).events

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


def test_kv_events_are_those_of_the_cache_and_can_be_had_again(folder: Path, tmp_path: Path) -> None:
    """Prompts and replies, by the hashes with which an index looks for them."""
    where, again = f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/again"
    settings = PublisherSettings(
        endpoint=where, topic="kv@pod@tiny", flush_s=0.0, batch_events=1, replay_endpoint=again
    )
    more = {"prefix_caching_hash_algo": "sha256_cbor", "hash_seed": "0"}
    with engine_process(folder, kv_events=msgspec.to_builtins(settings), **more) as engine:
        worker, subscriber = Worker(engine.options.endpoint), Subscriber(where)
        worker.greet()
        for number in range(100):  # until the subscription has come
            worker.generate(1000 + number, [number] * 17, 1)
            worker.wait(1000 + number)
            subscriber.hear()
            if subscriber.events:
                break
        subscriber.events.clear()
        prompt = [Random(2).randrange(300) for _ in range(50)]
        worker.generate(1, prompt, 40)
        ids = worker.whole(1)[0]
        assert worker.command("reset_prefix_cache").value is True
        worker.generate(2, [1], 1)  # the next step tells it
        worker.until(lambda: subscriber.hear() or AllBlocksCleared() in subscriber.events)  # type: ignore[func-returns-value]
        *events, last = subscriber.events
        stored = [event for event in events if isinstance(event, BlockStored)]
        assert last == AllBlocksCleared()
        hasher = BlockHasher("sha256_cbor", 16, "0", Random())
        hashes = [low64(it) for it in hasher.hashes([*prompt, *ids[:-1]])]
        assert [it for event in stored for it in event.block_hashes] == hashes
        assert [it for event in stored for it in event.token_ids] == [*prompt, *ids][:80]
        assert subscriber.sequences == list(range(subscriber.sequences[0], subscriber.sequences[-1] + 1))
        subscriber.close()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        asking = context.socket(zmq.DEALER)
        asking.connect(again)
        asking.send_multipart([b"", bytes(8)])
        assert asking.poll(20_000)
        _, topic, _, payload = asking.recv_multipart()
        assert topic == b"kv@pod@tiny" and msgspec.msgpack.decode(payload, type=EventBatch).events
        asking.close(linger=0)
        context.term()
        worker.close()
