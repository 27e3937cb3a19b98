"""The engine as a process, and workers that talk to it over real ZMQ."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec
import zmq

from app.core.engine.sampling import Sampling
from app.extensions.llm import wire
from tests.running_server import ROOT

PATIENCE_S = 50.0
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class EngineProcess:
    """A running process; its log is a file."""

    def __init__(self, options: wire.EngineProcessOptions, folder: Path) -> None:
        self.options = options
        self.log = folder / "log"
        with self.log.open("wb") as log:
            command = [
                sys.executable,
                "-m",
                "app.extensions.llm.service",
                msgspec.json.encode(options).decode(),
            ]
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=log, env=ENVIRONMENT)


@contextmanager
def engine_process(model: Path, **options: object) -> Iterator[EngineProcess]:
    """An engine for a tiny model, with 256 blocks if `options` do not say otherwise."""
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # pytest's own are too long for the path of a socket
        wanted = {
            "endpoint": f"ipc://{folder}/engine",
            "model": str(model),
            "num_blocks": 256,
            **options,
        }
        running = EngineProcess(msgspec.convert(wanted, wire.EngineProcessOptions), Path(folder))
        try:
            yield running
        finally:
            running.process.kill()
            running.process.wait()


class Worker:
    def __init__(self, endpoint: str, queued_messages: int = 10_000) -> None:
        """With few `queued_messages` it is one that soon is behind."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvhwm = queued_messages
        self._socket.connect(endpoint)
        self._decode = msgspec.msgpack.Decoder(list[wire.Notice]).decode
        self.outputs: dict[int, list[wire.EngineCoreOutput]] = {}
        self.loads: list[wire.EngineLoad] = []
        self.messages = 0
        self.ready: list[wire.Ready] = []
        self.answers: dict[int, wire.CommandResult] = {}
        self._numbers = 0

    def order(self, *orders: wire.Order) -> None:
        self.raw(msgspec.msgpack.encode(orders))

    def raw(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def greet(self) -> wire.Ready:
        self.order(wire.Hello())
        ready_before = len(self.ready)
        self.until(lambda: len(self.ready) > ready_before)
        return self.ready[-1]

    def generate(
        self, key: int, prompt_ids: Sequence[int], max_tokens: int = 16, **fields: object
    ) -> None:
        """Orders a greedy reply; `fields` are of the request or of its sampling."""
        request_fields = {"request_id": str(key), "arrival_s": 0.0}
        sampling_fields: dict[str, object] = {"temperature": 0.0, "ignore_eos": True}
        for name, value in fields.items():
            if name in Sampling.__struct_fields__:
                sampling_fields[name] = value
            else:
                request_fields[name] = value
        self.order(
            wire.EngineCoreRequest(
                key=key,
                prompt_ids=list(prompt_ids),
                max_tokens=max_tokens,
                sampling=Sampling(**sampling_fields),
                **request_fields,
            )
        )

    def abort(self, *keys: int) -> None:
        self.order(wire.Abort(list(keys)))

    def command(self, name: str, **fields: object) -> wire.CommandResult:
        return self.answer(self.ask(name, **fields))

    def ask(self, name: str, **fields: object) -> int:
        self._numbers += 1
        self.order(wire.EngineCommand(number=self._numbers, name=name, **fields))  # type: ignore[arg-type]
        return self._numbers

    def answer(self, number: int) -> wire.CommandResult:
        self.until(lambda: number in self.answers)
        return self.answers.pop(number)

    def hear(self, timeout_s: float = 0.1) -> None:
        if not self._socket.poll(int(timeout_s * 1000)):
            return
        self.messages += 1
        for notice in self._decode(self._socket.recv()):
            match notice:
                case wire.EngineCoreOutput():
                    self.outputs.setdefault(notice.key, []).append(notice)
                case wire.EngineLoad():
                    self.loads.append(notice)
                case wire.Ready():
                    self.ready.append(notice)
                case wire.CommandResult():
                    self.answers[notice.number] = notice

    def until(self, holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + patience_s
        while not holds():
            assert time.monotonic() < end, "the engine did not say it"
            self.hear()

    def wait_for_load(self, running: int | None = None, waiting: int | None = None) -> None:
        """Waits until the last load has these counts; None stands for any."""

        def has_counts() -> bool:
            if not self.loads:
                return False
            load = self.loads[-1]
            return running in (None, load.running) and waiting in (None, load.waiting)

        self.until(has_counts)

    def wait_for_outputs(self, key: int, more_than: int) -> None:
        """Waits until a choice has had more outputs than `more_than`."""
        self.until(lambda: len(self.outputs.get(key, [])) > more_than)

    def wait(self, *keys: int) -> list[wire.EngineCoreOutput]:
        """The last word of each choice, when all are over."""
        self.until(lambda: all(self.is_over(key) for key in keys))
        return [self.outputs[key][-1] for key in keys]

    def is_over(self, key: int) -> bool:
        return bool(self.outputs.get(key)) and self.outputs[key][-1].finish is not None

    def whole(self, key: int) -> tuple[list[int], str]:
        """Tokens and text of a choice, which is waited for and then forgotten."""
        self.wait(key)
        outputs = self.outputs.pop(key)
        return [token_id for part in outputs for token_id in part.ids], "".join(
            text for part in outputs for text in part.texts
        )

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
