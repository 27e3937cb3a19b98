"""The pods and the indexer of a fleet: their flags, their processes on loopback ports, and the wait until the
index is up to date.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from app.lab.fleet.routing import Incoming, Indexer
from app.lab.load.policies import IndexerError
from app.lab.load.workload import Workload
from app.serving.http.client import COMPLETIONS, exchange
from config import Settings, UsageError
from config.flags import parse
from config.settings import TABLE

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[3]
START_LIMIT_S = 60.0
STOP_LIMIT_S = 4.0
LOOK_AGAIN_S = 0.02
TAIL_BYTES = 4096
TRIES = 3
"""Most ports that are tried for a server when another process has taken its port."""
TAKEN = ("in use", "address already")

SETTINGS = {name for row in TABLE for name in row.env} - {"HF_TOKEN"}
STRANGE = ("SIM_", "GUNICORN_", "VLLM_", "POD_", "OTEL_", "UNDERSTUDY_", "WEB_CONCURRENCY")
"""Variables that configure servers: names, and beginnings of names. `HF_TOKEN` stays, as the user's own."""

Command = Callable[[int], Sequence[str]]
"""Returns the command line of a server for a port."""


class FleetError(Exception):
    """A process failed to start or ended, or an index gets no events; the text is one line."""


class ServerProcess:
    """One server process and its log. `address` is host:port."""

    def __init__(self, name: str, command: Command, port: int, environ: Mapping[str, str]) -> None:
        self.name = name
        self.command = command
        self.address = f"{HOST}:{port}"
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self.process = subprocess.Popen(
            command(port),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            # A Ctrl-C concerns the fleet, which ends its processes itself.
            start_new_session=True,
        )

    def is_healthy(self) -> bool:
        try:
            return exchange(self.address, "GET", "/health", timeout_s=1.0)[0] == 200
        except OSError:
            return False

    def end(self) -> str | None:
        """Returns the exit status and last log line of an ended process, as one line; None while it runs."""
        status = self.process.poll()
        if status is None:
            return None
        return f"{self.name} ({self.address}) ended with status {status}: {self.last_line()}"

    def last_line(self) -> str:
        """Returns the last line of the log with "error", else the last line."""
        size = os.fstat(self.log.fileno()).st_size
        tail = os.pread(self.log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["it has logged nothing"])[-1]

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its children, while it runs."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


class Processes:
    """Server processes that end with the `with` block, also after an error."""

    def __init__(self, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """`now` returns seconds, `sleep` waits for seconds."""
        self._now, self._sleep = now, sleep
        self.servers: list[ServerProcess] = []
        """Servers in the order of their start."""
        self._reserved: list[socket.socket] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def port(self) -> int:
        """Returns a port that was free, each time another one, and reserves it until `close`.

        On Linux a socket that never listens stays bound to each port. The kernel then never picks the port
        for another process. A server that names the port and sets SO_REUSEADDR, as gunicorn and ZMQ do, gets
        it. On other systems another process may take the port first.
        """
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        port = int(reserved.getsockname()[1])
        if sys.platform == "linux":
            self._reserved.append(reserved)
        else:
            reserved.close()
        return port

    def start(self, name: str, command: Command) -> ServerProcess:
        """Starts a server on a free port; call `wait` before use."""
        server = ServerProcess(name, command, self.port(), inherited(os.environ))
        self.servers.append(server)
        return server

    def wait(self, server: ServerProcess, limit_s: float = START_LIMIT_S) -> ServerProcess:
        """Waits until the server is healthy, and returns it; on another port if its own was taken.

        Raises FleetError when the server ends or takes longer than `limit_s`.
        """
        give_up_s = self._now() + limit_s
        for tried in range(TRIES):
            while (ended := server.end()) is None:
                if server.is_healthy():
                    return server
                if self._now() > give_up_s:
                    raise FleetError(
                        f"{server.name} is not healthy after {limit_s:g} s: {server.last_line()}"
                    )
                self._sleep(LOOK_AGAIN_S)
            if tried == TRIES - 1 or not any(words in ended.lower() for words in TAKEN):
                break
            self.servers.remove(server)
            server.log.close()
            server = self.start(server.name, server.command)
        raise FleetError(ended)

    def check(self) -> None:
        """Raises FleetError when a server has ended."""
        for server in self.servers:
            if ended := server.end():
                raise FleetError(ended)

    def close(self) -> None:
        """Ends all servers: by SIGTERM, and after `STOP_LIMIT_S` by SIGKILL."""
        try:
            for server in self.servers:
                server.signal(signal.SIGTERM)
            give_up_s = self._now() + STOP_LIMIT_S
            while self._now() < give_up_s and any(server.end() is None for server in self.servers):
                self._sleep(LOOK_AGAIN_S)
        finally:
            # A second Ctrl-C gets here, too.
            for server in self.servers:
                server.signal(signal.SIGKILL)
            for server in self.servers:
                server.process.wait()
                server.log.close()
            self.servers.clear()
            for reserved in self._reserved:
                reserved.close()
            self._reserved.clear()


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a server, without variables that configure servers.

    PYTHONPATH names this code, so that any working directory will do; paths in flags are relative to the
    working directory.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in SETTINGS and not name.startswith(STRANGE)
    }
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH"))))}


REPLY_TOKENS = 16
CACHE_SHARE = 0.75
"""The workload's tokens over the capacity of all caches: each prefix fits once, but not in every pod."""
RHYTHM = {
    "max-num-seqs": "8",
    "prefill-overhead": "20ms",
    "prefill-time-per-token": "400us",
    "inter-token-latency": "10ms",
    "time-factor-under-load": "2",
}
"""Latency flags of a pod: 2,500 prompt tokens a second without load."""
OWN = frozenset(
    ("host", "port", "pod-ip", "role", "data-parallel-size", "data-parallel-rank")
    + ("api-key", "ssl-certfile", "ssl-keyfile", "self-signed-certs")
    + ("enable-kvcache", "zmq-endpoint", "kv-events-topic")
    + ("kv-index", "kv-index-bind", "kv-index-pods", "kv-index-topic")
)
"""Settings that only the fleet sets, or that its proxy does not support."""
MODULE = (sys.executable, "-m", "app")
SETTLE_LIMIT_S = 15.0
EVENT_LIMIT_S = 2.0
"""Seconds after which a KV event counts as lost and another one is caused."""
MARK = "Mark {number}:"
MARK_WORD = " and"


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Flags of the pods and of the indexer, for `python -m app`, and facts of the model."""

    pod_flags: tuple[str, ...]
    indexer_flags: tuple[str, ...]
    seed: int
    model: str
    """Name of the model in requests."""
    block_size: int
    """Tokens of a pod's block."""

    def indexer(self, port: int, events: str) -> Sequence[str]:
        """Returns the command of the indexer, which receives KV events at the ZMQ address `events`."""
        own = ("--role", "indexer", "--kv-index-bind", events)
        return (*MODULE, *self.indexer_flags, *_at(port), *own)

    def pod(self, number: int, port: int, events: str) -> Sequence[str]:
        """Returns the command of a pod, which the indexer knows by its address."""
        seed = ("--seed", str(self.seed + number))
        return (*MODULE, *seed, *self.pod_flags, *_at(port), "--pod-ip", HOST, "--zmq-endpoint", events)


def check_flags(flags: Sequence[str]) -> None:
    """Raises UsageError for flags that are no settings, and for settings in `OWN`."""
    given = parse(flags)
    if given.version or given.config is not None:
        raise UsageError("flags --config and --version cannot be given to a fleet")
    for name in given.values:
        if name in OWN:
            raise UsageError(f"flag --{name} cannot be given: the fleet sets it itself")


def make_plan(
    settings: Settings, flags: Sequence[str], workload: Workload, pods: int, seed: int
) -> FleetPlan:
    """Returns the plan of a fleet for `workload`. `flags`, parsed as `settings`, override its defaults."""
    block = settings.kvcache.block_size
    length = workload.longest_tokens + REPLY_TOKENS
    # A pod's part of the workload, but room for two prompts at least, and the block that is never used.
    part = math.ceil(workload.distinct_tokens / CACHE_SHARE / pods / block)
    blocks = 1 + max(part, 2 * math.ceil(length / block))
    usual = {
        **RHYTHM,
        "log-level": "warning",
        "graceful-timeout": "1s",
        "max-model-len": str(max(4096, length * 5 // 4)),
        "kv-cache-size": str(blocks),
        "event-flush-interval": "20ms",
    }
    switches = ("--enable-kvcache", "--enable-prompt-tokens-details", "--server-dev-mode")
    words = (word for name, value in usual.items() for word in (f"--{name}", value))
    return FleetPlan(
        pod_flags=(*words, *switches, *flags),
        indexer_flags=("--log-level", "warning", *flags),
        seed=seed,
        model=settings.model.served_names[0],
        block_size=block,
    )


def _at(port: int) -> tuple[str, ...]:
    return ("--host", HOST, "--port", str(port))


class Fleet:
    """Pods that send KV events to an indexer. A pod's address, host:port, is also its name in the index."""

    def __init__(
        self,
        pods: tuple[str, ...],
        indexer: Indexer,
        plan: FleetPlan,
        processes: Processes,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.pods, self.indexer, self.processes = pods, indexer, processes
        self.model = plan.model
        # Long enough to fill a block with any tokenizer.
        self._mark = MARK + MARK_WORD * (2 * plan.block_size)
        self._now, self._sleep = now, sleep
        self._marks = count()

    def forget(self) -> None:
        """Empties the pods' caches and waits until the index follows. Raises FleetError when that fails."""
        give_up_s = self._now() + SETTLE_LIMIT_S
        for pod in self.pods:
            # Refused while requests run: a client that left may have some for a moment.
            while not self._reset(pod):
                self._wait_until(give_up_s, f"pod {pod} does not empty its cache")
        self.settle()

    def settle(self) -> None:
        """Waits until the indexer has all earlier events of every pod. Raises FleetError after a timeout.

        Each pod serves a prompt that is new to all pods. A pod's events keep their order: an index with
        this prompt has all earlier events, too.
        """
        give_up_s = self._now() + SETTLE_LIMIT_S
        while True:
            mark = self._marked()
            expected_by_s = self._now() + EVENT_LIMIT_S
            missing = self._missing(mark)
            while missing and self._now() < expected_by_s:
                self._wait_until(give_up_s, f"KV events of {', '.join(missing)} do not reach the indexer")
                missing = self._missing(mark)
            if not missing:
                return

    def _reset(self, pod: str) -> bool:
        status, body = _post(pod, "/reset_prefix_cache", b"")
        if status != 200:
            raise FleetError(f"pod {pod} answers /reset_prefix_cache with status {status}")
        reply = msgspec.json.decode(body) if body else {}
        return bool(reply.get("success", True))

    def _marked(self) -> Incoming:
        """Returns a request with a new prompt, which every pod has served."""
        prompt = self._mark.format(number=next(self._marks))
        body = msgspec.json.encode({"model": self.model, "prompt": prompt, "max_tokens": 1})
        for pod in self.pods:
            status, answer = _post(pod, COMPLETIONS, body)
            if status != 200:
                raise FleetError(f"pod {pod} answers with status {status}: {answer.decode(errors='replace')}")
        return Incoming(COMPLETIONS, body)

    def _missing(self, mark: Incoming) -> list[str]:
        try:
            scores = self.indexer.scores(mark)
        except IndexerError as error:
            self.processes.check()
            raise FleetError(f"the indexer gives no scores: {error}") from error
        return [pod for pod in self.pods if pod not in scores]

    def _wait_until(self, give_up_s: float, complaint: str) -> None:
        self.processes.check()
        if self._now() > give_up_s:
            raise FleetError(complaint)
        self._sleep(LOOK_AGAIN_S)


@contextmanager
def running_fleet(
    plan: FleetPlan,
    pods: int,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    started: Callable[[], None],
) -> Iterator[Fleet]:
    """Yields a fleet that is ready; `started` is called once for each process.

    Raises FleetError, with the last line of the log, when a process does not start.
    """
    with Processes(now, sleep) as processes:
        events = f"tcp://{HOST}:{processes.port()}"
        servers = [processes.start("indexer", partial(plan.indexer, events=events))]
        servers += [
            processes.start(f"pod {number}", partial(plan.pod, number, events=events))
            for number in range(pods)
        ]
        addresses = []
        for server in servers:
            addresses.append(processes.wait(server).address)
            started()
        fleet = Fleet(tuple(addresses[1:]), Indexer(addresses[0]), plan, processes, now, sleep)
        fleet.settle()
        yield fleet


def _post(pod: str, path: str, body: bytes) -> tuple[int, bytes]:
    try:
        return exchange(pod, "POST", path, body, timeout_s=30.0)
    except OSError as error:
        raise FleetError(f"pod {pod} does not answer: {error}") from error
