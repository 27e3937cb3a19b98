"""Servers and commands that `server_template` forks.

Their start takes a tenth of the processor time.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class ForkedServer:
    """A server process, with the methods of `subprocess.Popen` that tests call."""

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: str,
        stderr: str,
        cwd: Path = ROOT,
    ) -> None:
        """Starts `python -m module words` in the folder `cwd`, as `server_template`.

        The files `stdout` and `stderr` get its output.
        """
        # Tests that may not start processes refuse it by this event (conftest.py).
        sys.audit("subprocess.Popen", sys.executable, [module, *words])
        self._template = _template()
        answer = self._template.ask(
            module=module,
            words=[*words],
            env={**env},
            cwd=str(cwd),
            stdout=stdout,
            stderr=stderr,
        )
        self.pid: int = answer["pid"]
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Returns the exit status; None while the process runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("server", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Sends a signal to a process that runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            ended, _, _ = select.select([self._descriptor], [], [], timeout_s)
            if ended:
                self.returncode = self._template.ask(ended=self.pid)["status"]
                os.close(self._descriptor)
        return self.returncode


def run_forked(
    *words: str,
    module: str = "app",
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    timeout_s: float = 50.0,
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m module words` to its end, as `subprocess.run` with `capture_output`.

    `env` is added to an environment without SIM_ variables. Raises subprocess.TimeoutExpired after
    `timeout_s` seconds.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SIM_")}
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        process = ForkedServer(
            module,
            words,
            env={**inherited, **(env or {})},
            stdout=output.name,
            stderr=errors.name,
            cwd=cwd,
        )
        try:
            status = process.wait(timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(
            words, status, output.read().decode(), errors.read().decode()
        )


class Template:
    """The process that forks servers; it ends with this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server_template"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self._end)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and returns the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def _end(self) -> None:
        self._process.communicate()


@cache
def _template() -> Template:
    return Template()
