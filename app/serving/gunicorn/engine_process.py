"""The engine process (`engine: llm`), which the arbiter starts, and restarts after a crash.

The process starts by exec, because torch does not survive a fork, and ends with its parent in any
case. All workers share it; only the server's user can reach its socket. A hanging engine is killed,
as gunicorn kills hanging workers.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import MutableMapping
from contextlib import suppress
from logging import Logger
from pathlib import Path

import msgspec
from msgspec.structs import replace

from app.engine.core.heartbeat import DUMP_STACKS_SIGNAL, Heartbeat, HeartbeatMonitor
from app.engine.core.wire import CommandResult, EngineProcessOptions, Hello, Notice, Ready
from app.serving.gunicorn.ranks import ENDPOINT, SETTINGS
from config import ConfigError, Settings

MODULE = "app.llm.service"
ROOT = Path(__file__).parents[3]
PREFIX = "understudy-engine-"
DELAY_S = 1.0
"""Delay before a restart, in seconds; the start itself takes longer."""
PATIENCE_S = 10.0
"""Seconds for an orderly end."""
POLL_MS = 100
MOST_PATH_BYTES = 103
"""Longest socket path that every system accepts, in bytes."""


class EngineProcess:
    """The engine process of one arbiter, across restarts."""

    def __init__(self, options: EngineProcessOptions, log: Logger, timeout_s: float) -> None:
        """`options` lack the endpoint and the parent.

        `timeout_s`: longest time without a heartbeat, or 0.
        """
        self.options = options
        self._log = log
        self._folder = private_folder()
        self.endpoint = f"ipc://{self._folder}/engine"
        self._heartbeat, self._silence = Heartbeat(self.endpoint), HeartbeatMonitor()
        self.timeout_s = timeout_s
        self._is_asked_where = False
        self._pid: int | None = None
        self._ready: Ready | None = None
        self._again_s: float | None = None

    def begin(self, environ: MutableMapping[str, str]) -> None:
        """Starts the engine, waits until its model is loaded, and sets ENDPOINT for workers.

        ConfigError.
        """
        self._start()
        try:
            self._ready = self._wait()
        except ConfigError:
            self.end()
            raise
        environ[ENDPOINT] = self.endpoint

    def completed(self, settings: Settings) -> Settings:
        """Returns `settings` with the sizes that the engine reported when ready."""
        ready = self._ready
        if ready is None:
            return settings
        sizes = {"kv-cache-size": ready.num_blocks, "block-size": ready.block_size}
        return settings.changed(sizes | {"max-model-len": ready.max_model_len})

    def look(self) -> None:
        """Restarts an ended engine after a delay, and kills a hanging one.

        Called about once a second.
        """
        now_s = time.monotonic()
        if self._again_s is not None:
            if now_s >= self._again_s:
                self._start()
        elif self._runs():
            self._end_silence(now_s)
        else:
            self._log.error("The engine has ended. It is started again in %.1f s.", DELAY_S)
            self._again_s = now_s + DELAY_S

    def end(self) -> None:
        """Ends the engine: by SIGTERM, then by SIGKILL after PATIENCE_S. Removes its folder."""
        deadline_s = time.monotonic() + PATIENCE_S
        self._signal(signal.SIGTERM)
        while self._runs() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        if self._runs():
            self._signal(signal.SIGKILL)
        self._pid = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _end_silence(self, now_s: float) -> None:
        """Kills an engine without heartbeats; one call earlier, requests a log of its threads'
        stacks.
        """
        silent_s = self._silence.look(self._heartbeat.last_s(), now_s)
        if not self.timeout_s or silent_s <= self.timeout_s:
            self._is_asked_where = False
        elif self._is_asked_where:
            self._signal(signal.SIGKILL)
        else:
            self._is_asked_where = True
            told = "The engine (pid %d) has not gone on for %.1f s: it is killed"
            self._log.error(told, self._pid, silent_s)
            self._signal(DUMP_STACKS_SIGNAL)

    def _start(self) -> None:
        self._heartbeat.stop()
        options = replace(self.options, endpoint=self.endpoint, parent_pid=os.getpid())
        command = [sys.executable, "-m", MODULE, msgspec.json.encode(options).decode()]
        # Without the settings of the workers, and with this package's folder in its path.
        environ = {name: text for name, text in os.environ.items() if name != SETTINGS}
        environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), environ.get("PYTHONPATH")))
        )
        self._pid = os.posix_spawn(sys.executable, command, environ)
        self._again_s = None
        self._log.info("The engine loads %s (pid %d)", options.model, self._pid)

    def _runs(self) -> bool:
        """True while the engine runs. The arbiter may have reaped the process already."""
        if self._pid is None:
            return False
        try:
            runs = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG) is None
        except ChildProcessError:
            runs = False
        if not runs:
            self._pid = None
        return runs

    def _wait(self) -> Ready:
        import zmq  # only servers with a real engine need it

        context, reason = zmq.Context(), "the engine has ended, and says why above"
        try:
            socket = context.socket(zmq.DEALER)
            socket.linger = 0
            socket.connect(self.endpoint)
            socket.send(msgspec.msgpack.encode([Hello()]))
            decode = msgspec.msgpack.Decoder(list[Notice]).decode
            ended = False
            while not ended:
                ended = not self._runs()
                while socket.poll(0 if ended else POLL_MS):
                    for notice in decode(socket.recv()):
                        if type(notice) is Ready:
                            return notice
                        if type(notice) is CommandResult and notice.error is not None:
                            ended, reason = True, notice.error
        finally:
            context.destroy(linger=0)  # before anything is forked
        raise ConfigError(
            f"setting model: {self.options.model!r} cannot be served by engine llm: {reason}"
        )


def private_folder() -> str:
    """Creates a temporary folder that only this user may enter.

    ConfigError when none can be made.
    """
    try:
        folder = tempfile.mkdtemp(prefix=PREFIX)
    except OSError as error:
        raise ConfigError(f"TMPDIR: engine llm has no place for its socket: {error}") from None
    if len(os.fsencode(folder)) + len("/engine") > MOST_PATH_BYTES:
        os.rmdir(folder)
        raise ConfigError(f"TMPDIR: {os.path.dirname(folder)} is too long for the path of a socket")
    return folder
