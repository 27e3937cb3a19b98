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
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from logging import Logger
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from app.core.server.gunicorn.ranks import ENDPOINT, SETTINGS
from app.extensions.llm.heartbeat import DUMP_STACKS_SIGNAL, Heartbeat, HeartbeatMonitor
from app.extensions.llm.llama_cpp import huge_pages
from app.extensions.llm.llama_cpp.package import may_compute
from app.extensions.llm.wire import CommandResult, EngineProcessOptions, Hello, Notice, Ready
from config import ConfigError
from config.untrusted import decode_untrusted

MODULE = "app.extensions.llm.service"
ROOT = Path(__file__).parents[3]
FOLDER_PREFIX = "understudy-engine-"
RESTART_DELAY_S = 1.0
"""Delay before a restart, in seconds; the start itself takes longer."""
STOP_TIMEOUT_S = 10.0
"""Seconds for an orderly end."""
POLL_MS = 100
MAX_PATH_BYTES = 103
"""Longest socket path that every system accepts, in bytes."""


class EngineProcess:
    """The engine process of one arbiter, across restarts."""

    def __init__(self, options: EngineProcessOptions, log: Logger, timeout_s: float) -> None:
        """`options` lack the endpoint and the parent.

        `timeout_s`: longest time without a heartbeat, or 0 for no limit.
        """
        self.options = options
        self._log = log
        self._folder = private_folder()
        self.endpoint = f"ipc://{self._folder}/engine"
        self._heartbeat = Heartbeat(self.endpoint)
        self._monitor = HeartbeatMonitor()
        self.timeout_s = timeout_s
        self._has_dumped_stacks = False
        """A hanging engine has been asked to log the stacks of its threads."""
        self._pid: int | None = None
        self._ready: Ready | None = None
        self._restart_s: float | None = None
        """Time of the next restart (monotonic seconds); None while no restart is planned."""

    def begin(self, environ: MutableMapping[str, str]) -> None:
        """Starts the engine, waits until its model is loaded, and sets ENDPOINT for workers.

        Raises:
            ConfigError: the engine cannot serve the model.
        """
        self._start()
        try:
            self._ready = self._wait_until_ready()
        except ConfigError:
            self.end()
            raise
        environ[ENDPOINT] = self.endpoint

    def sizes(self) -> Mapping[str, object]:
        """Returns the settings, by name, with the sizes that the engine reported when ready."""
        ready = self._ready
        if ready is None:
            return {}
        return {
            "kv-cache-size": ready.num_blocks,
            "block-size": ready.block_size,
            "max-model-len": ready.max_model_len,
        }

    def supervise(self) -> None:
        """Restarts an ended engine after a delay, and kills a hanging one.

        Called about once a second.
        """
        now_s = time.monotonic()
        if self._restart_s is not None:
            if now_s >= self._restart_s:
                self._start()
        elif self._is_running():
            self._kill_if_hanging(now_s)
        else:
            self._log.error(
                "The engine process has exited. Restarting it in %.1f s.", RESTART_DELAY_S
            )
            self._restart_s = now_s + RESTART_DELAY_S

    def end(self) -> None:
        """Ends the engine: by SIGTERM, then by SIGKILL after STOP_TIMEOUT_S. Removes its folder."""
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        self._signal(signal.SIGTERM)
        while self._is_running() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        if self._is_running():
            self._signal(signal.SIGKILL)
        self._pid = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _kill_if_hanging(self, now_s: float) -> None:
        """Kills an engine without heartbeats.

        One call earlier, the engine is asked to log the stacks of its threads.
        """
        silent_s = self._monitor.look(self._heartbeat.last_s(), now_s)
        if not self.timeout_s or silent_s <= self.timeout_s:
            self._has_dumped_stacks = False
        elif self._has_dumped_stacks:
            self._signal(signal.SIGKILL)
        else:
            self._has_dumped_stacks = True
            self._log.error(
                "The engine process (pid %d) has not responded for %.1f s. Killing it.",
                self._pid,
                silent_s,
            )
            self._signal(DUMP_STACKS_SIGNAL)

    def _start(self) -> None:
        self._heartbeat.stop()
        options = replace(self.options, endpoint=self.endpoint, parent_pid=os.getpid())
        command = [sys.executable, "-P", "-m", MODULE, msgspec.json.encode(options).decode()]
        # Without the settings of the workers, and with this package's folder in its path instead of
        # the working folder, whose modules would hide ours.
        environ = {name: text for name, text in os.environ.items() if name != SETTINGS}
        if may_compute(options.model):
            environ = huge_pages.ENVIRONMENT | environ
        environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), environ.get("PYTHONPATH")))
        )
        self._pid = os.posix_spawn(sys.executable, command, environ)
        self._restart_s = None
        self._log.info("The engine process (pid %d) is loading %s", self._pid, options.model)

    def _is_running(self) -> bool:
        """True while the engine runs. The arbiter may have reaped the process already."""
        if self._pid is None:
            return False
        try:
            is_running = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG) is None
        except ChildProcessError:
            is_running = False
        if not is_running:
            self._pid = None
        return is_running

    def _wait_until_ready(self) -> Ready:
        import zmq  # only servers with a real engine need it

        context = zmq.Context()
        try:
            socket = context.socket(zmq.DEALER)
            socket.linger = 0
            socket.connect(self.endpoint)
            socket.send(msgspec.msgpack.encode([Hello()]))
            return self._receive_ready(socket)
        finally:
            context.destroy(linger=0)  # before anything is forked

    def _receive_ready(self, socket: Any) -> Ready:
        """Receives notices until the engine is ready, has failed, or has ended."""
        decoder = msgspec.msgpack.Decoder(list[Notice])
        reason = "the engine process has ended; see its output above"
        has_ended = False
        while not has_ended:
            has_ended = not self._is_running()
            timeout_ms = POLL_MS
            if has_ended:
                timeout_ms = 0
            while socket.poll(timeout_ms):
                for notice in decode_untrusted(socket.recv(), decoder=decoder):
                    if type(notice) is Ready:
                        return notice
                    if type(notice) is CommandResult and notice.error is not None:
                        has_ended = True
                        reason = notice.error
        raise ConfigError(
            f"setting model: {self.options.model!r} cannot be used by the llm engine: {reason}"
        )


def private_folder() -> str:
    """Creates a temporary folder that only this user may enter, and returns its path.

    Raises:
        ConfigError: no folder can be created, or its path is too long for a socket.
    """
    try:
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
    except OSError as error:
        raise ConfigError(
            f"TMPDIR: cannot create a folder for the llm engine's socket: {error}"
        ) from None
    if len(os.fsencode(folder)) + len("/engine") > MAX_PATH_BYTES:
        os.rmdir(folder)
        raise ConfigError(f"TMPDIR: {os.path.dirname(folder)} is too long for a socket path")
    return folder
