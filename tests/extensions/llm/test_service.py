"""The engine's process over real ZMQ: streams, ends, workers that go, commands, KV events."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.engine.kvcache.events import AllBlocksCleared, BlockStored, EventBatch, KVEvent
from app.core.engine.kvcache.hashing import BlockHasher, low64
from app.core.engine.kvcache.publishing import PublisherSettings
from app.extensions.llm.heartbeat import DUMP_STACKS_SIGNAL
from tests.extensions.llm.process import EngineProcess, Worker, engine_process
from tests.extensions.llm.remote.wire.test_process import is_alive
from tests.extensions.llm.tiny import prompts
from tests.hostile.raw_client import wait_for_value
from tests.running_server import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

WANTED = prompts(6, seed=9)
LONG = 400


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[EngineProcess]:
    with engine_process(folder, max_num_seqs=4, max_queue_size=6) as running:
        yield running


@pytest.fixture
def worker(engine: EngineProcess) -> Iterator[Worker]:
    with Worker(engine.options.endpoint) as connected:
        connected.greet()
        connected.command("resume")
        yield connected
        connected.command("wake_up")
    assert engine.process.poll() is None, engine.log.read_text()


@pytest.fixture
def other(engine: EngineProcess) -> Iterator[Worker]:
    with Worker(engine.options.endpoint) as connected:
        connected.greet()
        yield connected


def test_each_worker_receives_only_its_own_outputs(
    worker: Worker, other: Worker, engine: EngineProcess
) -> None:
    ready = worker.greet()
    assert ready == other.greet()
    assert (ready.max_model_len, ready.num_blocks, ready.block_size) == (1024, 256, 16)
    for key, prompt in enumerate(WANTED):
        (worker if key % 2 else other).generate(key // 2, prompt)
    replies_of_workers = [
        (worker if key % 2 else other).whole(key // 2) for key in range(len(WANTED))
    ]
    assert not worker.outputs and not other.outputs
    for key, prompt in enumerate(WANTED):
        worker.generate(key, prompt)
        assert worker.whole(key) == replies_of_workers[key]


def test_worker_receives_one_message_for_each_engine_step(
    worker: Worker,
) -> None:
    started_s = time.monotonic()
    worker.generate(1, WANTED[0], logprobs=2, prompt_logprobs=1)
    worker.wait(1)
    outputs = worker.outputs[1]
    moments = [output.at_s for output in outputs]
    assert (
        [len(output.ids) for output in outputs]
        == [1] * 16
        == [len(output.texts) for output in outputs]
    )
    assert moments == sorted(set(moments)) and moments[-1] <= time.monotonic()
    assert outputs[0].queued_s is not None and outputs[0].scheduled_s is not None
    assert started_s <= outputs[0].queued_s <= outputs[0].scheduled_s <= moments[0]
    assert outputs[0].prompt_logprobs is not None and len(outputs[0].prompt_logprobs) == len(
        WANTED[0]
    )
    assert [output.logprobs is not None and len(output.logprobs) for output in outputs] == [1] * 16
    assert [output.finish for output in outputs] == [None] * 15 + ["length"]


def test_abort_frees_blocks_and_ends_the_output(worker: Worker) -> None:
    for key in range(6):
        worker.generate(key, WANTED[key], LONG)
    worker.wait_for_load(running=4, waiting=2)
    for key in range(6, 11):
        worker.generate(key, [1], LONG)
    [last] = worker.wait(10)  # that more may not wait is no fault of the request
    assert "wait" in str(last.error) and not last.is_refused
    worker.abort(*range(10), 99)
    worker.wait_for_load(running=0, waiting=0)
    assert worker.loads[-1].cache_usage == 0
    assert not any(worker.is_over(key) for key in range(10))


VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
NAMES = st.sampled_from(["type", "key", "keys"])
PACKED = st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.binary() | PACKED.map(msgspec.msgpack.encode), max_size=3))
def test_malformed_messages_of_a_worker_to_the_engine_are_ignored(
    worker: Worker, frames: list[bytes]
) -> None:
    worker.raw(*frames or [b""])
    worker.generate(1, [1, 2, 3], 1)
    assert len(worker.whole(1)[0]) == 1


def test_impossible_requests_are_rejected_without_ending_a_running_request(worker: Worker) -> None:
    refused = {"top_p": 7.0}, {"bad_words": ("x",)}
    cases = ({"prompt_ids": []}, {"prompt_ids": [1] * 2000}, {"max_tokens": 0}, *refused)
    for key, case in enumerate(cases):
        worker.generate(key, **{"prompt_ids": [1], **case})
    for last in worker.wait(*range(len(cases))):
        assert last.finish == "error" and last.error and last.is_refused and not last.ids
    worker.generate(50, [1], LONG)
    worker.generate(50, [2], 1)  # its key is in use
    assert len(worker.whole(50)[0]) == LONG


def test_engine_process_survives_a_stack_dump_but_ends_after_sigterm(
    folder: Path,
) -> None:
    with engine_process(folder) as engine, Worker(engine.options.endpoint) as worker:
        worker.greet()
        engine.process.send_signal(DUMP_STACKS_SIGNAL)
        worker.generate(1, [5], 4)
        assert len(worker.whole(1)[0]) == 4
        assert "in run_once\n" in engine.log.read_text()
        worker.generate(1, [1] * 20, 900)
        worker.wait_for_outputs(1, more_than=2)
        engine.process.terminate()
        assert worker.wait(1)[0].finish == "error"
        assert engine.process.wait(20) == 0


def test_engine_process_ends_with_its_parent(folder: Path) -> None:
    """Also when the parent has no time for a word, and whether the model is loaded or not."""
    code = f"""if True:
        import os, sys, time
        from pathlib import Path
        from tests.extensions.llm.process import Worker, engine_process
        with engine_process(Path({str(folder)!r}), parent_pid=os.getpid()) as engine:
            if sys.argv[1] == "loaded":
                Worker(engine.options.endpoint).greet()
            print(engine.process.pid, engine.options.endpoint, flush=True)
            time.sleep(100)
    """
    for state in ("loading", "loaded"):
        command = [sys.executable, "-c", code, state]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            pid, endpoint = parent.stdout.readline().split()
            parent.kill()
        wait_for_value(is_alive, int(pid), equals=False, limit_s=30.0)
        assert not Path(endpoint.removeprefix("ipc://")).exists()


# Commands of an operator, and what the index of blocks hears.


def test_pause_delays_new_requests_and_keeps_or_aborts_running_ones(
    worker: Worker, other: Worker
) -> None:
    assert worker.command("pause").error is None
    other.generate(1, WANTED[0])
    other.wait_for_load(waiting=1)
    assert other.loads[-1].paused and 1 not in other.outputs
    assert worker.command("resume").error is None
    assert len(other.whole(1)[0]) == 16
    for mode in ("keep", "abort"):
        other.generate(1, WANTED[0], 300)
        other.wait_for_load(running=1)
        worker.command("pause", mode=mode)
        last = other.wait(1)[0]
        assert last.finish == ("length" if mode == "keep" else "abort")
        assert (len(other.whole(1)[0]) == 300) == (mode == "keep")
        worker.command("resume")


def test_pause_in_wait_mode_waits_for_running_requests(worker: Worker, other: Worker) -> None:
    other.generate(1, WANTED[0], 100)
    other.wait_for_load(running=1)
    worker.command("pause", mode="wait")
    assert worker.loads[-1].running == 0
    other.until(lambda: other.is_over(1), patience_s=5)
    worker.command("resume")
    other.generate(2, WANTED[0], 900)
    other.wait_for_load(running=1)
    number = worker.ask("pause", mode="wait")
    worker.command("resume")
    worker.answer(number)  # who resumes ends the waiting
    other.abort(2)


def test_no_request_starts_at_sleep_level_0_but_running_requests_continue(
    worker: Worker, other: Worker
) -> None:
    other.generate(1, WANTED[1], 100)
    other.wait_for_outputs(1, more_than=5)
    assert worker.command("sleep", level=0).error is None
    worker.generate(2, WANTED[0])
    assert len(other.whole(1)[0]) == 100
    worker.wait_for_load(running=0, waiting=1)
    assert worker.loads[-1].sleep_level == 0 and 2 not in worker.outputs
    worker.command("wake_up")
    assert worker.whole(2)[0] and worker.loads[-1].sleep_level is None


@pytest.mark.parametrize("level", [1, 2])
def test_replies_are_unchanged_after_sleep(worker: Worker, other: Worker, level: int) -> None:
    worker.generate(1, WANTED[0])
    expected = worker.whole(1)
    other.generate(1, WANTED[1], 200)
    other.wait_for_outputs(1, more_than=5)
    assert worker.command("sleep", level=level).error is None
    assert worker.loads[-1].sleep_level == level and worker.loads[-1].running == 0
    worker.generate(2, WANTED[0])
    worker.wait_for_load(waiting=2)
    worker.command("wake_up", tags=("weights",))
    assert worker.loads[-1].sleep_level == level and 2 not in worker.outputs
    worker.command("wake_up", tags=("kv_cache",))
    assert worker.loads[-1].sleep_level is None
    assert worker.whole(2) == expected
    other.wait(1)
    assert other.outputs[1][-1].preemptions == 1
    slept = other.whole(1)
    other.generate(3, WANTED[1], 200)
    assert other.whole(3) == slept


def test_kv_events_describe_the_cache_and_can_be_replayed(folder: Path, tmp_path: Path) -> None:
    """Prompts and replies, by the hashes with which an index looks for them."""
    where = f"ipc://{tmp_path}/kv"
    replay_endpoint = f"ipc://{tmp_path}/again"
    topic = "kv@pod@tiny"
    publisher = PublisherSettings(
        endpoint=where, topic=topic, flush_s=0.0, batch_events=1, replay_endpoint=replay_endpoint
    )
    options = {"prefix_caching_hash_algo": "sha256_cbor", "hash_seed": "0"}
    events: list[KVEvent] = []
    numbers: list[int] = []
    with (
        engine_process(folder, kv_events=msgspec.to_builtins(publisher), **options) as engine,
        Worker(engine.options.endpoint) as worker,
        zmq.Context() as context,
        context.socket(zmq.SUB) as subscriber,
        context.socket(zmq.DEALER) as asking,
    ):
        subscriber.linger = asking.linger = 0
        subscriber.subscribe("kv@")
        subscriber.connect(where)

        def heard() -> list[KVEvent]:
            while subscriber.poll(50):
                received_topic, number, payload = subscriber.recv_multipart()
                assert received_topic.decode() == topic
                numbers.append(int.from_bytes(number, "big"))
                events.extend(msgspec.msgpack.decode(payload, type=EventBatch).events)
            return events

        worker.greet()
        for number in range(100):  # until the subscription has come
            worker.generate(1000 + number, [number] * 17, 1)
            worker.wait(1000 + number)
            if heard():
                break
        events.clear()
        prompt = [Random(2).randrange(300) for _ in range(50)]
        worker.generate(1, prompt, 40)
        ids = worker.whole(1)[0]
        assert worker.command("reset_prefix_cache").value is True
        worker.generate(2, [1], 1)  # the next step tells it
        worker.until(lambda: AllBlocksCleared() in heard())
        stored = [event for event in events if isinstance(event, BlockStored)]
        assert events[-1] == AllBlocksCleared()
        hasher = BlockHasher("sha256_cbor", 16, "0", Random())
        hashes = [low64(hash_or_value) for hash_or_value in hasher.hashes([*prompt, *ids[:-1]])]
        assert [hash_or_value for event in stored for hash_or_value in event.block_hashes] == hashes
        assert [hash_or_value for event in stored for hash_or_value in event.token_ids] == [
            *prompt,
            *ids,
        ][:80]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        asking.connect(replay_endpoint)
        asking.send_multipart([b"", bytes(8)])
        assert asking.poll(20_000)
        _, received_topic, _, payload = asking.recv_multipart()
        assert (
            received_topic.decode() == topic
            and msgspec.msgpack.decode(payload, type=EventBatch).events
        )
