"""Renders conversations with the templates of requests in a process that can be stopped.

The process (`template_worker`) starts at the first such request and stays, as a start takes about
0.2 s. One process serves all requests in turn: a hostile template then takes one core at most, at a
low priority.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import gevent
import msgspec
from gevent import socket

from app.core.base.clock.pause import pause_if_possible, wait_off_hub
from app.core.base.fair_slots import FairSlots, ended_by_client
from app.core.text.base import ChatTemplateError, TokenizerServiceError
from app.core.text.template_protocol import (
    LENGTH,
    MAX_OTHER_BYTES,
    RenderAnswer,
    RenderRequest,
    prompt_limit,
    request_parts,
)
from config.machine import usable_memory
from config.untrusted import UntrustedDataError, decode_untrusted

CPU_S = 2.0
"""Processor time that a template may take for one conversation, in seconds."""
MAX_MEMORY_BYTES = 512 << 20
MIN_MEMORY_BYTES = 128 << 20
"""Address space of the process in bytes; it needs about 60 MB without a template."""
MEMORY_SHARE = 1 / 8
"""Part of the usable memory that the process may take, within these limits."""
PATIENCE_S = 20.0
"""Real time until a process without an answer is stopped, in seconds, for busy machines."""
MAX_WAITING = 32
"""Default number of conversations that may wait: each one takes `CPU_S` at most."""
READ_BYTES = 1 << 18
COPIED_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONDONTWRITEBYTECODE",
)
"""Environment variables of the process: others may hold keys."""
WORKER = "app.core.text.template_worker"
_ANSWERS = msgspec.msgpack.Decoder(RenderAnswer)


class TemplateProcess:
    """Renders in another process, which is restarted after a template has ended it.

    Greenlets may share it.
    """

    def __init__(
        self,
        cpu_s: float = CPU_S,
        memory_bytes: int | None = None,
        patience_s: float = PATIENCE_S,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes or process_memory(usable_memory())
        self._patience_s = patience_s
        self._turn = FairSlots(1, max_waiting)
        self._worker: RunningWorker | None = None

    def render(self, request: RenderRequest) -> str:
        """Returns the prompt.

        Raises:
            ChatTemplateError: the template fails, or takes too much time or memory.
            TokenizerServiceError: the process cannot start.
            SlotsBusyError, ClientLeftError, NoWaitError: as `FairSlots`; a client that leaves ends
                its template.
        """
        parts: list[bytes] = []
        for part in request_parts(request):
            parts.append(part)
            pause_if_possible()
        data = b"".join(parts)
        with self._turn:
            answer = self._exchange(data)
        if answer.error:
            raise ChatTemplateError(answer.error, answer.param)
        return answer.prompt.decode("utf-8", "surrogatepass")

    def close(self) -> None:
        """Ends the process."""
        worker = self._worker
        self._worker = None
        if worker is not None:
            worker.end()

    def _exchange(self, data: bytes) -> RenderAnswer:
        worker = self._worker
        if worker is not None and worker.process.poll() is not None:
            worker.stop()  # the process has died
            worker = None
        if worker is None:
            worker = self._worker = self._start()
        try:
            with gevent.Timeout(self._patience_s, NoAnswerError), ended_by_client():
                answer = worker.exchange(data)
        except (ConnectionError, EOFError, UntrustedDataError):
            self._worker = None
            raise ChatTemplateError(self._reason(worker.end())) from None
        except BaseException:
            # The request has ended: its answer must not become the answer of the next one.
            self._worker = None
            worker.stop()
            gevent.spawn(worker.end)
            raise
        if answer.is_last:
            self._worker = None
            worker.end()
        return answer

    def _start(self) -> "RunningWorker":
        connection, worker_connection = socket.socketpair()
        variables = {name: os.environ[name] for name in COPIED_VARIABLES if name in os.environ}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        try:
            process = wait_off_hub(
                subprocess.Popen,
                [python_path(), "-P", "-m", WORKER, str(self._cpu_s), str(self._memory_bytes)],
                stdin=worker_connection.fileno(),
                stdout=subprocess.DEVNULL,
                env=variables,
            )
        except OSError as error:
            connection.close()
            raise TokenizerServiceError(
                f"The chat template process cannot be started: {error}."
            ) from error
        finally:
            worker_connection.close()
        return RunningWorker(process, connection)

    def _reason(self, status: int) -> str:
        if status == -signal.SIGPROF:
            return f"The chat template takes more than {self._cpu_s:g} s of processor time."
        return (
            "The chat template was stopped: it needs more than"
            f" {self._memory_bytes >> 20} MiB of memory, or its process had no time."
        )


class NoAnswerError(EOFError):
    """The process has not answered for `PATIENCE_S`."""


class RunningWorker:
    """A process that answers requests on a socket."""

    def __init__(self, process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
        self.process = process
        self._connection = connection

    def exchange(self, data: bytes) -> RenderAnswer:
        """Returns the answer to a request.

        Raises:
            EOFError: the process has ended, or its answer is too long.
            OSError: the process has ended.
        """
        self._connection.sendall(LENGTH.pack(len(data)))
        self._connection.sendall(data)
        length = LENGTH.unpack(self._read(LENGTH.size))[0]
        if length > prompt_limit(len(data)) + MAX_OTHER_BYTES:
            raise EOFError
        return decode_untrusted(self._read(length), decoder=_ANSWERS)

    def stop(self) -> None:
        """Kills the process, without waiting for its end."""
        self._connection.close()
        with suppress(ProcessLookupError):
            self.process.kill()

    def end(self) -> int:
        """Kills the process, and returns its exit status."""
        self.stop()
        return wait_off_hub(self.process.wait)

    def _read(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            received = self._connection.recv(min(READ_BYTES, count - len(data)))
            if not received:
                raise EOFError
            data += received
        return data


def process_memory(usable_bytes: int) -> int:
    """Returns the default limit of the process where all processes may take `usable_bytes`."""
    return max(MIN_MEMORY_BYTES, min(MAX_MEMORY_BYTES, int(MEMORY_SHARE * usable_bytes)))


def python_path() -> str:
    """Returns the path of the interpreter.

    In a server written in C, `sys.executable` is the server.
    """
    if Path(sys.executable).name.startswith("python"):
        return sys.executable
    return str(Path(sys.prefix, "bin", "python3"))
