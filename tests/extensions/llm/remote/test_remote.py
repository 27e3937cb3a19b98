"""A worker's door to an engine in a process of its own:

what it orders, admits, counts, and survives.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import gevent
import msgspec
import pytest
import zmq.green as zmq
from gevent.event import Event

from app.core.base.metrics.recorder import Recorder
from app.core.base.overload import ClientLeftError
from app.core.engine.errors import (
    CommandFailedError,
    EngineDeadError,
    EnginePausedError,
    QueueFullError,
)
from app.core.engine.outputs import EngineOutput, Failed, Started, Tokens
from app.extensions.llm import wire
from app.extensions.llm.remote_engine import RemoteEngine
from app.extensions.llm.remote_lifecycle import RemoteLifecycle
from app.shared.virtual_clock import VirtualClock
from config.settings import SchedulingSettings, Settings
from tests.core.engine.harness import START_S, engine_request
from tests.core.kvcache.sockets import until

DEADLINE_S = 10.0
BOOT = "first"
T = TypeVar("T")


class PlayedEngine:
    """Listens at `endpoint`.

    `orders` are those that came, `messages` how many of them came together.
    """

    def __init__(self, endpoint: str) -> None:
        self.orders: list[wire.Order] = []
        self.messages: list[int] = []
        self.endpoint = endpoint
        self._context = zmq.Context()
        self._worker = b""
        self.listen()

    def listen(self) -> None:
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(self.endpoint)
        self._reading = gevent.spawn(self._read)

    def die(self) -> None:
        """Be gone, as a process that is killed."""
        self._reading.kill()
        self._socket.close()

    def close(self) -> None:
        self.die()
        self._context.destroy(linger=0)

    def say(self, *notices: wire.Notice) -> None:
        self.say_bytes(msgspec.msgpack.encode(notices))

    def say_bytes(self, data: bytes) -> None:
        self._socket.send_multipart([self._worker, data])

    def _read(self) -> None:
        while True:
            self._worker, data = self._socket.recv_multipart()
            orders = msgspec.msgpack.decode(data, type=list[wire.Order])
            self.messages.append(len(orders))
            self.orders += orders


def no_names(ids: Sequence[int]) -> list[str]:
    """Names no tokens."""
    return []


def no_reader(request: object) -> None:
    """Reads no text."""


class Worker:
    """A worker's door to an engine that is played. Its clock stands still."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.peer = PlayedEngine(f"ipc://{folder}/engine")
        self.recorder = Recorder("test", 4096, {})
        settings = Settings(scheduling=SchedulingSettings(**limits))
        self.engine = RemoteEngine(
            settings,
            self.peer.endpoint,
            self.recorder,
            VirtualClock(START_S),
            names=no_names,
            reader_of=no_reader,
        )
        self.outputs: list[tuple[str, EngineOutput]] = []
        self.engine.start()
        until(lambda: wire.Hello() in self.peer.orders)

    def wait_for_health(self, healthy: bool) -> None:
        until(lambda: self.engine.healthy == healthy)

    def wait_for_commands(self, count: int) -> None:
        """Waits until at least `count` commands were sent."""
        until(lambda: len(self.commands) >= count)

    def wait_for_aborts(self, count: int) -> None:
        """Waits until exactly `count` choices were aborted."""
        until(lambda: len(self.aborted) == count)

    def wait_for_refusals(self, refuses: bool) -> None:
        until(lambda: self.engine.refuses_requests == refuses)

    def greet(self, boot: str = BOOT) -> None:
        self.peer.say(
            wire.Ready(boot=boot, pid=os.getpid(), max_model_len=4096, num_blocks=64, block_size=16)
        )
        self.wait_for_health(True)

    def ask(self, name: str = "a", choices: int = 1, **fields: Any) -> Any:
        engine_requests = [
            engine_request(request_id=name, index=index, n=choices, arrival_s=START_S, **fields)
            for index in range(choices)
        ]
        return self.engine.submit(
            engine_requests, lambda output: self.outputs.append((name, output))
        )

    def keys(self, count: int) -> list[int]:
        """Of the choices that were ordered, of which there are `count`."""
        until(lambda: len(self.ordered) >= count)
        assert len(self.ordered) == count
        return [order.key for order in self.ordered]

    @property
    def ordered(self) -> list[wire.EngineCoreRequest]:
        return [order for order in self.peer.orders if isinstance(order, wire.EngineCoreRequest)]

    @property
    def aborted(self) -> list[int]:
        return [
            key for order in self.peer.orders if isinstance(order, wire.Abort) for key in order.keys
        ]

    @property
    def commands(self) -> list[wire.EngineCommand]:
        """Of operators, and of `hears`."""
        return [order for order in self.peer.orders if isinstance(order, wire.EngineCommand)]

    def hears(self, *notices: wire.Notice) -> None:
        """The engine says them, and the worker has taken them."""
        commands_before = len(self.commands)
        heard = self.engine.command(wire.EngineCommand(name="stats"))
        self.wait_for_commands(commands_before + 1)
        self.peer.say(*notices, wire.CommandResult(number=self.commands[-1].number, value=True))
        heard.get(timeout=DEADLINE_S)

    def says(self, key: int, *texts: str, **fields: Any) -> None:
        output = wire.EngineCoreOutput(
            key=key, ids=list(range(len(texts))), texts=list(texts), at_s=START_S + 1, **fields
        )
        self.hears(output)

    def ends(self, name: str = "a") -> list[str]:
        """How the choices of a request ended, those that have."""
        own_outputs = [output for output_name, output in self.outputs if output_name == name]
        errors = [
            type(output_of_request.error).__name__
            for output_of_request in own_outputs
            if isinstance(output_of_request, Failed)
        ]
        return errors + [
            output_of_request.finish.reason
            for output_of_request in own_outputs
            if isinstance(output_of_request, Tokens) and output_of_request.finish is not None
        ]

    def metric(self, name: str, labels: str = "") -> float:
        lines = self.recorder.render().splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith(f"vllm:{name}{{") and labels in line
        )

    def loads(self, **fields: Any) -> None:
        self.hears(wire.EngineLoad(**fields))


@contextmanager
def worker(folder: Path, greeted: bool = True, **limits: Any) -> Iterator[Worker]:
    """A worker, connected; `limits` are fields of SchedulingSettings."""
    played = Worker(folder, **limits)
    try:
        if greeted:
            played.greet()
        yield played
    finally:
        played.engine.close()
        played.peer.close()


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Worker]:
    with worker(tmp_path, max_num_seqs=2, max_waiting_queue_length=1) as greeted:
        yield greeted


def test_choice_counts_as_waiting_until_the_remote_engine_starts_it(play: Worker) -> None:
    handle = play.ask()
    [key] = play.keys(1)
    assert (play.engine.waiting, play.engine.running, handle.future.done()) == (1, 0, False)
    play.says(key, "a")
    assert (play.engine.waiting, play.engine.running) == (0, 1)
    assert [sequence.key for sequence in play.engine.sequences()] == [key]
    play.says(key, "b", finish="stop")
    assert (play.engine.waiting, play.engine.running, handle.future.done()) == (0, 0, True)
    assert play.ends() == ["stop"] and not play.aborted and not [*play.engine.sequences()]


def test_remote_engine_rejects_more_choices_than_slots_and_queue_places(play: Worker) -> None:
    assert play.engine.room() == 3
    play.engine.check_admission(3)
    with pytest.raises(QueueFullError, match="0 wait already"):
        play.ask(choices=4)
    play.ask(choices=3)
    assert play.engine.room() == 0
    with pytest.raises(QueueFullError, match="1 wait already"):
        play.ask("b")
    assert len(play.keys(3)) == 3


@pytest.mark.parametrize("awaited", [True, False])
def test_order_says_whether_the_reply_is_awaited(play: Worker, awaited: bool) -> None:
    """The engine then sends fewer messages."""
    play.engine.submit(
        [engine_request(request_id="a", arrival_s=START_S)], no_reader, awaited=awaited
    )
    play.keys(1)
    assert [order.is_awaited for order in play.ordered] == [awaited]


def test_sequences_of_other_workers_occupy_slots(play: Worker) -> None:
    play.ask()
    play.loads(running=2, waiting=0)
    assert play.engine.room() == 1
    play.loads(running=2, waiting=1)
    assert play.engine.room() == 0
    play.loads()  # a step behind: ours is not yet known there
    assert play.engine.room() == 2


def test_no_more_choices_are_sent_after_an_abort_during_submission(
    tmp_path: Path,
) -> None:
    with worker(tmp_path) as play:
        asking = gevent.spawn(play.ask, choices=40)
        gevent.sleep(0)
        assert play.engine.interrupt(["a"]) == 41
        asking.get(timeout=DEADLINE_S)
        play.wait_for_aborts(40)
        assert play.ends() == ["abort"] * 40 and len(play.ordered) == 16


def test_abort_is_sent_to_the_engine(play: Worker) -> None:
    handle = play.ask(choices=2)
    keys = play.keys(2)
    assert 0 not in keys  # the number of what nobody has asked
    handle.abort()
    play.wait_for_aborts(2)
    assert sorted(play.aborted) == keys and play.engine.waiting == 0
    play.says(keys[0], "late")
    assert not play.outputs


def test_requests_of_a_lost_engine_fail_before_a_new_engine_starts(
    play: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    play.ask()
    [key] = play.keys(1)
    play.says(key, "a")
    play.loads(running=3, prefix_queries=64, prefix_hits=32, preemptions=2)
    answer = play.engine.command(wire.EngineCommand(name="resume"))
    play.peer.die()
    play.wait_for_health(False)
    assert play.ends() == ["EngineDeadError"] and play.engine.running == 0
    assert [record.getMessage() for record in caplog.records] == [
        "the engine process exited, so 1 sequences failed"
    ]
    assert "started again" in (answer.get(timeout=DEADLINE_S).error or "")
    assert play.metric("num_requests_running") == 0
    with pytest.raises(EngineDeadError):
        play.ask("b")
    assert not play.aborted
    greetings = len(play.peer.orders)
    play.peer.listen()
    until(lambda: len(play.peer.orders) > greetings)
    play.greet("second")
    assert play.engine.room() == 3
    play.ask("c")
    play.says(play.keys(2)[1], "c", finish="stop")
    assert play.ends("c") == ["stop"]
    play.loads(prefix_queries=16)
    assert play.metric("prefix_cache_queries_total") == 64 + 16
    assert play.metric("num_preemptions_total") == 2


def test_worker_rejects_requests_once_its_engine_is_lost(tmp_path: Path) -> None:
    with worker(tmp_path, max_num_seqs=9999) as play:
        play.peer.die()
        for _ in range(1000):  # nobody has noticed; what is sent before the socket knows is lost
            try:
                play.ask()
            except EngineDeadError:
                break
            time.sleep(0.005)
        else:
            pytest.fail("it is ordered from nobody")
        lost = play.engine.waiting
        assert play.engine.healthy, "it is not looked at meanwhile"
        play.wait_for_health(False)
        assert play.ends() == ["EngineDeadError"] * lost and play.engine.waiting == 0


def test_requests_survive_a_repeated_greeting_but_not_a_new_engine(play: Worker) -> None:
    play.ask()
    [key] = play.keys(1)
    play.greet()
    play.says(key, "a")
    assert play.ends() == []
    play.greet("second")
    play.hears()
    assert play.ends() == ["EngineDeadError"] and play.engine.healthy


def test_each_command_to_the_engine_receives_the_result_with_its_number(play: Worker) -> None:
    first, second = (
        play.engine.command(wire.EngineCommand(name="pause", mode=mode))
        for mode in ("keep", "wait")
    )
    play.wait_for_commands(2)
    first_command, second_command = play.commands
    assert (first_command.mode, second_command.mode) == (
        "keep",
        "wait",
    ) and first_command.number != second_command.number
    play.hears(
        wire.CommandResult(number=second_command.number, value=False),
        wire.CommandResult(number=99_999, value=True),
    )
    assert second.get(timeout=DEADLINE_S).value is False and not first.ready()


def test_failing_callback_or_invalid_message_leaves_other_requests_running(
    play: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(output: EngineOutput) -> None:
        raise ZeroDivisionError

    play.engine.submit([engine_request(request_id="bad")], breaks)
    play.ask("good")
    bad, good = play.keys(2)
    play.peer.say_bytes(b"\xc1 is never msgpack")
    play.hears(
        wire.EngineCoreOutput(key=bad, ids=[1], texts=["a"], at_s=START_S),
        wire.EngineLoad(),
        wire.EngineCoreOutput(key=good, ids=[1], texts=["a"], at_s=START_S),
    )
    play.wait_for_aborts(1)
    assert play.aborted == [bad]
    assert [type(output) for _, output in play.outputs][:1] == [Started] and play.ends("good") == []
    assert "invalid message" in caplog.text and "could not be delivered" in caplog.text
    play.says(good, "b", finish="stop")
    assert play.ends("good") == ["stop"]


class Operated:
    def __init__(self, play: Worker) -> None:
        self.play = play
        self.life = RemoteLifecycle(play.engine)
        self.left = Event()

    def does(
        self,
        act: Callable[..., T],
        *arguments: object,
        value: bool | None = True,
        error: str | None = None,
    ) -> T:
        """What `act(*arguments)` returns when the engine answers so."""
        commands_before = len(self.play.commands)
        acting = gevent.spawn(act, *arguments)
        self.play.wait_for_commands(commands_before + 1)
        self.play.peer.say(
            wire.CommandResult(number=self.play.commands[-1].number, value=value, error=error)
        )
        return acting.get(timeout=DEADLINE_S)

    @property
    def stands(self) -> tuple[bool, bool]:
        return self.life.is_sleeping, self.life.paused


def test_wake_up_by_tags_returns_true_only_once_all_memory_is_restored(play: Worker) -> None:
    operated = Operated(play)
    operated.does(operated.life.sleep, 1, "abort", operated.left)
    assert not operated.does(operated.life.wake_up, ["weights"], value=False)
    command = play.commands[-1]
    assert (command.name, command.level, command.tags) == ("wake_up", 0, ("weights",))
    assert (
        operated.stands == (True, True)
        and play.metric("engine_sleep_state", '"weights_offloaded"') == 1
    )
    assert operated.does(operated.life.wake_up, ["kv_cache"])
    assert operated.stands == (False, False) and play.metric("engine_sleep_state", '"awake"') == 1
    operated.does(operated.life.sleep, 0, "keep", operated.left)
    assert play.commands[-1].level == 0 and operated.stands == (True, True)
    assert operated.does(operated.life.wake_up, None) and operated.stands == (False, False)


def test_failed_engine_command_leaves_the_pause_state_unchanged(play: Worker) -> None:
    operated = Operated(play)
    with pytest.raises(CommandFailedError, match="Not now"):
        operated.does(operated.life.pause, "keep", operated.left, value=None, error="Not now.")
    with pytest.raises(CommandFailedError):
        operated.life.release_cache()
    acting = gevent.spawn(operated.life.pause, "wait", operated.left)
    play.wait_for_commands(2)
    operated.left.set()
    with pytest.raises(ClientLeftError):
        acting.get(timeout=DEADLINE_S)
    assert operated.stands == (False, False)


def test_paused_remote_engine_rejects_requests_except_in_keep_mode(play: Worker) -> None:
    operated = Operated(play)
    operated.life = RemoteLifecycle(play.engine)
    operated.does(operated.life.pause, "keep", operated.left)
    assert not play.commands[-1].refuse
    play.ask("kept")
    assert play.outputs == []
    operated.does(operated.life.pause, "wait", operated.left)
    assert play.commands[-1].refuse
    play.ask("late", choices=2)
    [(name, output)] = play.outputs
    assert name == "late"
    assert isinstance(output, Failed)
    assert isinstance(output.error, EnginePausedError)
    operated.does(operated.life.resume)
    play.peer.say(wire.EngineLoad(paused=True, refuses_requests=True))
    play.wait_for_refusals(True)
    play.peer.say(wire.EngineLoad())
    play.wait_for_refusals(False)
