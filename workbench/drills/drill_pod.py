"""A pod of a drill: a server process behind a gate, which fails on demand."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from app.shared.http_client import exchange
from workbench.drills.gate import Gate
from workbench.fleet.processes import HOST, FleetError, Processes, ServerProcess

CONTROL_TIMEOUT_S = 10.0


class DrillPod:
    """One pod. See `schedule.Pod` for its failures."""

    def __init__(
        self, number: int, *, gate: Gate, port: int, command: Sequence[str], processes: Processes
    ) -> None:
        """`command` starts a server at `port`; nothing runs before `start`."""
        self.number = number
        self.gate = gate
        self._port = port
        self._command = command
        self._processes = processes
        self._server: ServerProcess | None = None
        self._is_stopped = False
        self._is_admitted = False
        self._stalls: set[int] = set()
        """Pods that prevent progress."""
        self._delays_s: dict[int, float] = {}
        """Additional time to the first token, by the pod that causes it."""
        self._is_choked = False
        """True if the process starts no requests."""
        self._applied_delay_s = 0.0
        """The delay of the process."""

    @property
    def address(self) -> str:
        """Host and port of the process itself, behind the gate."""
        return f"{HOST}:{self._port}"

    def start(self) -> None:
        """Starts a process, which routers do not reach before `admit`."""
        self._server = self._processes.start(f"pod {self.number}", self._port, self._command)

    def admit(self) -> None:
        """Waits until the process is healthy, and opens the gate.

        Raises:
            FleetError: The process does not start.
        """
        if self._server is None:
            raise FleetError(f"pod {self.number} was not started")
        self._processes.wait(self._server)
        self._is_admitted = True
        self._apply_stalls()
        self._apply_delays()
        self.gate.open()

    def kill(self) -> None:
        """Ends all processes of the pod with SIGKILL."""
        server = self._server
        self._server = None
        self._is_stopped = False
        self._is_admitted = False
        self._is_choked = False
        self._applied_delay_s = 0.0
        if server is not None:
            self._signal(server, signal.SIGKILL)
            server.process.wait()
        self.gate.close()

    def stop(self) -> None:
        """Stops all processes of the pod."""
        self._is_stopped = True
        if self._server is not None:
            self._signal(self._server, signal.SIGSTOP)

    def proceed(self) -> None:
        """Continues the processes."""
        self._is_stopped = False
        if self._server is not None:
            self._signal(self._server, signal.SIGCONT)
            self._apply_stalls()
            self._apply_delays()

    def empty_cache(self) -> bool:
        """Empties the prefix cache; returns False while requests prevent that."""
        return b"false" not in self._control("POST", "/reset_prefix_cache", None)

    def close(self) -> None:
        """Refuses and breaks connections."""
        self.gate.close()

    def open(self) -> None:
        """Accepts connections."""
        self.gate.open()

    def cut(self) -> None:
        """Passes no bytes."""
        self.gate.cut()

    def heal(self) -> None:
        """Passes bytes."""
        self.gate.heal()

    def stick(self, cause: int) -> None:
        """Makes no progress because of pod `cause`."""
        self._stalls.add(cause)
        self._apply_stalls()

    def release(self, cause: int) -> None:
        """Makes progress again, unless another pod prevents it."""
        self._stalls.discard(cause)
        self._apply_stalls()

    def slow(self, cause: int, delay_s: float) -> None:
        """Delays new requests because of pod `cause`."""
        self._delays_s[cause] = delay_s
        self._apply_delays()

    def speed_up(self, cause: int) -> None:
        """Delays new requests no longer, unless because of another pod."""
        self._delays_s.pop(cause, None)
        self._apply_delays()

    def _apply_stalls(self) -> None:
        """Lets the engine start requests, or none; running ones end, but nothing shows it."""
        is_stuck = bool(self._stalls)
        if is_stuck:
            self.gate.hold_answers()
        if self._is_controllable and is_stuck != self._is_choked:
            self._is_choked = is_stuck
            if is_stuck:
                self._control("POST", "/admin/choke", {"paused": True})
            else:
                self._control("DELETE", "/admin/choke", None)
        if not is_stuck:
            self.gate.pass_answers()

    def _apply_delays(self) -> None:
        delay_s = max(self._delays_s.values(), default=0.0)
        if not self._is_controllable or delay_s == self._applied_delay_s:
            return
        self._applied_delay_s = delay_s
        rules = []
        if delay_s:
            rules.append({"action": "slow-first-token", "seconds": delay_s})
        self._control("POST", "/admin/config", {"fault-rules": rules})

    @property
    def _is_controllable(self) -> bool:
        """True if the process answers; one that is down or stopped gets its state later."""
        return self._is_admitted and not self._is_stopped

    def _control(self, method: str, path: str, body: object) -> bytes:
        """Sends a request past the gate, and returns the answer.

        Raises:
            FleetError: The pod rejects the request, or does not answer.
        """
        data = None if body is None else msgspec.json.encode(body)
        try:
            status, answer = exchange(self.address, method, path, data, timeout_s=CONTROL_TIMEOUT_S)
        except OSError as error:
            raise FleetError(f"pod {self.number} does not respond to {path}: {error}") from error
        if status != 200:
            text = answer.decode(errors="replace")
            raise FleetError(f"pod {self.number} returned status {status} for {path}: {text}")
        return answer

    def _signal(self, server: ServerProcess, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(server.process.pid, number)
