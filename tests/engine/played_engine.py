"""The other end of a worker's socket, in this process: notes what is ordered, and says what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import msgspec
import zmq.green as zmq

from app.base.clock.clock import VirtualClock
from app.base.metrics.recorder import Recorder
from app.engine.core.outputs import EngineOutput, Failed, Tokens
from app.engine.core.remote import RemoteEngine
from app.engine.core.wire import (
    Abort,
    Answer,
    Command,
    EngineCoreOutput,
    EngineCoreRequest,
    Hello,
    Load,
    Notice,
    Order,
    Ready,
)
from config.settings import SchedulingSettings, Settings
from tests.engine.harness import START_S, engine_request

DEADLINE_S = 10.0
BOOT = "first"


def until(happens: Callable[[], object]) -> None:
    """Wait for it; what it gives is looked at every few milliseconds."""
    with gevent.Timeout(DEADLINE_S):
        while not happens():
            gevent.sleep(0.002)


class PlayedEngine:
    """Listens at `endpoint`. `orders` are those that came, `messages` how many of them came together."""

    def __init__(self, endpoint: str) -> None:
        self.orders: list[Order] = []
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

    def say(self, *notices: Notice) -> None:
        self.say_bytes(msgspec.msgpack.encode(notices))

    def say_bytes(self, data: bytes) -> None:
        self._socket.send_multipart([self._worker, data])

    def _read(self) -> None:
        while True:
            self._worker, data = self._socket.recv_multipart()
            orders = msgspec.msgpack.decode(data, type=list[Order])
            self.messages.append(len(orders))
            self.orders += orders


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
            lambda ids: [],
            lambda it: None,
        )
        self.outputs: list[tuple[str, EngineOutput]] = []
        self.engine.start()
        until(lambda: Hello() in self.peer.orders)

    def greet(self, boot: str = BOOT) -> None:
        """The engine is ready, and the worker knows."""
        model = {"vocab_size": 100, "max_model_len": 4096, "num_blocks": 64, "block_size": 16}
        self.peer.say(Ready(boot=boot, pid=1, dtype="float32", device="cpu", **model))
        until(lambda: self.engine.healthy)

    def ask(self, name: str = "a", choices: int = 1, **fields: Any) -> Any:
        """A request of so many choices."""
        asked = [
            engine_request(request_id=name, index=index, n=choices, arrival_s=START_S, **fields)
            for index in range(choices)
        ]
        return self.engine.submit(asked, lambda output: self.outputs.append((name, output)))

    def keys(self, count: int) -> list[int]:
        """Of the choices that were ordered, of which there are `count`."""
        until(lambda: len(self.ordered) >= count)
        assert len(self.ordered) == count
        return [order.key for order in self.ordered]

    @property
    def ordered(self) -> list[EngineCoreRequest]:
        return [order for order in self.peer.orders if isinstance(order, EngineCoreRequest)]

    @property
    def aborted(self) -> list[int]:
        return [key for order in self.peer.orders if isinstance(order, Abort) for key in order.keys]

    @property
    def commands(self) -> list[Command]:
        """Of operators, and of `hears`."""
        return [order for order in self.peer.orders if isinstance(order, Command)]

    def hears(self, *notices: Notice) -> None:
        """The engine says them, and the worker has taken them."""
        before = len(self.commands)
        heard = self.engine.command(Command(name="stats"))
        until(lambda: len(self.commands) > before)
        self.peer.say(*notices, Answer(number=self.commands[-1].number, value=True))
        heard.get(timeout=DEADLINE_S)

    def says(self, key: int, *texts: str, **fields: Any) -> None:
        """A step has brought these tokens."""
        said = EngineCoreOutput(
            key=key, ids=list(range(len(texts))), texts=list(texts), at_s=START_S + 1, **fields
        )
        self.hears(said)

    def ends(self, name: str = "a") -> list[str]:
        """How the choices of a request ended, those that have."""
        told = [output for whose, output in self.outputs if whose == name]
        errors = [type(it.error).__name__ for it in told if isinstance(it, Failed)]
        return errors + [it.finish.reason for it in told if isinstance(it, Tokens) and it.finish is not None]

    def metric(self, name: str, labels: str = "") -> float:
        lines = self.recorder.render().splitlines()
        return sum(float(it.split()[-1]) for it in lines if it.startswith(f"vllm:{name}{{") and labels in it)

    def loads(self, **fields: Any) -> None:
        """The engine tells how it does."""
        self.hears(Load(**fields))


@contextmanager
def worker(folder: Path, greeted: bool = True, **limits: Any) -> Iterator[Worker]:
    """A worker, connected; `limits` are fields of SchedulingSettings."""
    made = Worker(folder, **limits)
    try:
        if greeted:
            made.greet()
        yield made
    finally:
        made.engine.close()
        made.peer.close()
