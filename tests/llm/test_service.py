"""The engine's process over real ZMQ: streams, ends, workers that go, commands, KV events."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.core.heartbeat import TELL_WHERE
from app.engine.core.wire import Sampling
from app.engine.kvcache.endpoints import PublisherSettings
from app.engine.kvcache.events import AllBlocksCleared, BlockStored, EventBatch, KVEvent
from app.engine.kvcache.hashing import BlockHasher, low64
from app.llm.llm import LLM
from app.llm.sampling_params import SamplingParams
from tests.llm.process import ENVIRONMENT, EngineProcess, Worker, engine_process
from tests.llm.tiny import VOCABULARY, prompts
from tests.running_server import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

WANTED = prompts(6, seed=9)
LONG = 400


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[EngineProcess]:
    with engine_process(folder, max_num_seqs=4) as running:
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


@pytest.fixture
def other(engine: EngineProcess) -> Iterator[Worker]:
    with Worker(engine.options.endpoint) as made:
        made.greet()
        yield made


@pytest.fixture(scope="module")
def replies(folder: Path) -> list[list[int]]:
    """What the library says to each of `WANTED`."""
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    with LLM(str(folder), "cpu", num_blocks=256, max_seq_length=512) as llm:
        return [it["token_ids"] for it in llm.generate(WANTED, params, progress=False)]  # type: ignore[misc]


def test_two_workers_hear_what_the_engine_is_and_each_what_it_ordered(
    worker: Worker, other: Worker, engine: EngineProcess, replies: list[list[int]]
) -> None:
    ready = worker.greet()
    assert ready == other.greet()
    assert (ready.pid, ready.vocab_size, ready.max_model_len) == (engine.process.pid, VOCABULARY, 1024)
    assert (ready.num_blocks, ready.block_size, ready.dtype, ready.device) == (256, 16, "float32", "cpu")
    for key, prompt in enumerate(WANTED):
        (worker if key % 2 else other).generate(key // 2, prompt)
    said = [(worker if key % 2 else other).whole(key // 2)[0] for key in range(len(WANTED))]
    assert said == replies
    assert not worker.said and not other.said


def test_each_step_is_one_message_with_moments(worker: Worker) -> None:
    before = time.monotonic()
    worker.generate(1, WANTED[0], logprobs=2, prompt_logprobs=1)
    worker.wait(1)
    said = worker.said[1]
    moments = [it.at_s for it in said]
    assert [len(it.ids) for it in said] == [1] * 16 == [len(it.texts) for it in said]
    assert moments == sorted(set(moments)) and moments[-1] <= time.monotonic()
    assert said[0].scheduled_s is not None and before <= said[0].scheduled_s <= moments[0]
    assert said[0].prompt_logprobs is not None and len(said[0].prompt_logprobs) == len(WANTED[0])
    assert [it.logprobs is not None and len(it.logprobs) for it in said] == [1] * 16
    assert [it.finish for it in said] == [None] * 15 + ["length"]
    assert all(it.scheduled_s is None and it.prompt_logprobs is None for it in said[1:])


def test_a_prefix_that_was_computed_is_found(worker: Worker) -> None:
    prompt = [7] * 100
    worker.generate(1, prompt)
    worker.wait(1)
    loads = worker.loads[-1]
    worker.generate(2, prompt)
    worker.wait(2)
    worker.generate(3, prompt, prompt_logprobs=1)
    worker.wait(3)
    told = [(worker.said[key][0].cached_tokens, worker.said[key][0].created_tokens) for key in (1, 2, 3)]
    assert told == [(0, 96), (96, 0), (0, 96)], "for its log probabilities all of a prompt is computed"
    assert worker.loads[-1].prefix_hits == loads.prefix_hits + 96
    assert worker.loads[-1].prefix_queries == loads.prefix_queries + 100


def test_a_step_is_told_once_with_the_prompts_that_it_completed(worker: Worker) -> None:
    first = len(worker.loads)
    worker.generate(1, [8] * 100, 3)
    worker.wait(1)
    worker.generate(2, [9] * 2, 1)  # tells of the steps before, if anything does
    worker.wait(2)
    assert [it.step_tokens for it in worker.loads[first:] if it.step_tokens] == [101, 1, 1, 3]
    said = worker.said[1][0]
    assert said.queued_s is not None and said.scheduled_s is not None
    assert said.queued_s <= said.scheduled_s <= said.at_s


def test_an_abort_frees_blocks_and_is_the_last_word(worker: Worker) -> None:
    for key in range(6):
        worker.generate(key, WANTED[key], LONG)
    worker.until(
        lambda: bool(worker.loads) and worker.loads[-1].running == 4 and worker.loads[-1].waiting == 2
    )
    worker.abort(*range(6), 99)
    worker.until(lambda: worker.loads[-1].running == worker.loads[-1].waiting == 0)
    assert worker.loads[-1].cache_usage == 0
    assert not any(worker.is_over(key) for key in range(6))


@pytest.mark.parametrize("end", ["closes", "is killed"])
def test_choices_of_a_worker_that_leaves_end(worker: Worker, engine: EngineProcess, end: str) -> None:
    code = f"""
        import sys
        from tests.llm.process import Worker
        worker = Worker({engine.options.endpoint!r})
        for key in range(3):
            worker.generate(key, [key + 1] * 20, {LONG})
        worker.until(lambda: len(worker.said) == 3)
        worker.close() if {end == "closes"} else worker.until(lambda: False)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as child:
        worker.until(lambda: worker.loads[-1].running == 3)
        if end == "is killed":
            child.kill()
        worker.until(lambda: worker.loads[-1].running == 0, patience_s=10)
        child.kill()
    assert worker.loads[-1].cache_usage == 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    frames=st.lists(
        st.binary()
        | st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "key", "keys"]), inner),
        ).map(msgspec.msgpack.encode),
        max_size=3,
    )
)
def test_what_is_no_order_changes_nothing(worker: Worker, frames: list[bytes]) -> None:
    worker.raw(*frames or [b""])
    worker.generate(1, [1, 2, 3], 1)
    assert len(worker.whole(1)[0]) == 1


def test_orders_that_cannot_be_carried_out(worker: Worker) -> None:
    cases: list[dict[str, object]] = [
        {"prompt_ids": []},
        {"prompt_ids": [1] * 2000},
        {"max_tokens": 0},
        {"sampling": Sampling(top_p=7.0)},
        {"sampling": Sampling(bad_words=("x",))},
    ]
    for key, case in enumerate(cases):
        worker.generate(key, **{"prompt_ids": [1], **case})  # type: ignore[arg-type]
    for last in worker.wait(*range(len(cases))):
        assert last.finish == "error" and last.error and last.is_refused and not last.ids
    worker.generate(50, [1], LONG)
    worker.generate(50, [2], 1)  # its key is in use
    assert len(worker.whole(50)[0]) == LONG


def test_more_than_may_wait_is_no_fault_of_the_request(folder: Path) -> None:
    with (
        engine_process(folder, num_blocks=9, max_num_seqs=1, max_queue_size=1) as engine,
        Worker(engine.options.endpoint) as worker,
    ):
        assert worker.greet().max_model_len == 128
        for key in (2, 3, 4):
            worker.generate(key, [1] * 20, 100)
            if key == 2:
                worker.until(lambda: worker.loads[-1].running == 1)
        last = worker.wait(4)[0]
        assert "wait" in str(last.error) and not last.is_refused
        assert [len(worker.whole(key)[0]) for key in (2, 3)] == [100, 100]


def test_it_writes_where_it_is_and_sigterm_ends_streams_and_the_process(folder: Path) -> None:
    with engine_process(folder) as engine, Worker(engine.options.endpoint) as worker:
        worker.greet()
        engine.process.send_signal(TELL_WHERE)
        worker.generate(1, [5], 4)
        assert len(worker.whole(1)[0]) == 4
        assert "in turn\n" in engine.log.read_text()
        worker.generate(1, [1] * 20, 900)
        worker.until(lambda: len(worker.said.get(1, [])) > 2)
        engine.process.terminate()
        assert worker.wait(1)[0].finish == "error"
        assert engine.process.wait(20) == 0


def test_the_engine_ends_with_its_parent(folder: Path, tmp_path: Path) -> None:
    """Also when the parent has no time for a word, and whether the model is loaded or not."""
    code = f"""
        import os, sys, time
        from pathlib import Path
        from tests.llm.process import Worker, engine_process
        with engine_process(Path({str(folder)!r}), parent_pid=os.getpid()) as engine:
            if sys.argv[1] == "loaded":
                Worker(engine.options.endpoint).greet()
            print(engine.process.pid, engine.options.endpoint, flush=True)
            time.sleep(100)
    """
    for state in ("loading", "loaded"):
        command = [sys.executable, "-c", textwrap.dedent(code), state]
        parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        pid, endpoint = parent.stdout.readline().split()
        parent.kill()
        parent.wait()
        parent.stdout.close()
        until(lambda pid=int(pid): not is_alive(pid))
        assert not Path(endpoint.removeprefix("ipc://")).exists()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds: Callable[[], bool], patience_s: float = 30.0) -> None:
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    good = {"endpoint": f"ipc://{tmp_path}/e", "model": str(tmp_path)}
    for words, told in (
        ("{", "options"),
        (msgspec.json.encode(good).decode(), "no .safetensors"),
        (msgspec.json.encode({**good, "endpoint": "nowhere"}).decode(), "nowhere"),
    ):
        command = [sys.executable, "-m", "app.llm.service", words]
        ended = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=50)
        assert ended.returncode == 1 and told in ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr


def test_a_second_engine_at_the_same_place_is_another(folder: Path) -> None:
    with engine_process(folder) as first:
        worker = Worker(first.options.endpoint)
        boots = [worker.greet().boot]
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        again = EngineProcess(first.options, first.log.parent)
        try:
            boots.append(worker.greet().boot)
            assert len(set(boots)) == 2
            worker.generate(1, [1], 3)
            assert len(worker.whole(1)[0]) == 3
        finally:
            again.process.kill()
            again.process.wait()
            worker.close()


# Commands of an operator, and what the index of blocks hears.


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
