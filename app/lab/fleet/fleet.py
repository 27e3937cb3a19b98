"""The pods and the indexer of a fleet:

their load, their flags, their processes on loopback ports.
"""

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
from itertools import count
from pathlib import Path
from random import Random
from typing import IO

import msgspec

from app.lab.fleet.routing import Incoming, Indexer
from app.lab.load.policies import IndexerError
from app.serving.http.client import COMPLETIONS, exchange
from config import Settings, UsageError
from config.command_line import parse
from config.settings import TABLE

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[3]
START_LIMIT_S = 60.0
STOP_LIMIT_S = 4.0
LOOK_AGAIN_S = 0.02
TAIL_BYTES = 4096

SETTINGS = {name for row in TABLE for name in row.env} - {"HF_TOKEN"}
STRANGE = ("SIM_", "GUNICORN_", "VLLM_", "POD_", "OTEL_", "UNDERSTUDY_", "WEB_CONCURRENCY")
"""Variables that configure servers:

names, and beginnings of names. `HF_TOKEN` stays, as the user's own.
"""


TURNS = 4
"""Most turns of a user's conversation."""
QUESTION_TOKENS = 60
ANSWER_TOKENS = 40
"""Tokens of an answer in the history of later turns: the same under every policy."""
SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in the order of sending:

    users in groups with one system prompt each, in conversations.
    """

    prompts: tuple[str, ...]
    longest_tokens: int
    """Estimated tokens of the longest prompt."""
    distinct_tokens: int
    """Estimated tokens to cache: every system prompt once, every conversation once."""


def make_workload(
    requests: int, groups: int, prefix_tokens: int, seed: int, compose: Callable[[int, Random], str]
) -> Workload:
    """Spreads `requests` evenly over `groups`, in random order.

    `compose` makes a text of so many tokens.
    """
    talks: list[list[str]] = []
    """The prompts of each user, turn by turn."""
    for group in range(groups):
        # The heading gives each group a different first block, whatever the text begins with.
        prefix = f"Instructions {group}\n{compose(prefix_tokens, Random(f'{seed}/{group}'))}"
        left = requests // groups + (group < requests % groups)
        for user in range(math.ceil(left / TURNS)):
            rng = Random(f"{seed}/{group}/{user}")
            talk = [prefix + SEPARATOR + compose(QUESTION_TOKENS, rng)]
            while len(talk) < min(TURNS, left - user * TURNS):
                turn = compose(ANSWER_TOKENS, rng), compose(QUESTION_TOKENS, rng)
                talk.append(SEPARATOR.join((talk[-1], *turn)))
            talks.append(talk)
    order = [number for number, talk in enumerate(talks) for _ in talk]
    Random(f"{seed}/order").shuffle(order)
    turns = [iter(talk) for talk in talks]
    own = [len(talk) * (QUESTION_TOKENS + ANSWER_TOKENS) - ANSWER_TOKENS for talk in talks]
    """Tokens of each conversation that its group does not share."""
    distinct = min(groups, requests) * prefix_tokens + sum(own)
    return Workload(
        tuple(next(turns[number]) for number in order), prefix_tokens + max(own), distinct
    )


class FleetError(Exception):
    """A process failed to start or ended, or an index gets no events; the text is one line."""


class ServerProcess:
    """One server process and its log. `address` is host:port."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, environ: Mapping[str, str]
    ) -> None:
        self.name = name
        self.address = f"{HOST}:{port}"
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self.process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            # A Ctrl-C concerns the fleet, which ends its processes itself.
            start_new_session=True,
        )

    def is_healthy(self) -> bool:
        with suppress(OSError):
            return exchange(self.address, "GET", "/health", timeout_s=1.0)[0] == 200
        return False

    def check(self) -> None:
        """Raises FleetError when the process has ended."""
        if (status := self.process.poll()) is not None:
            raise FleetError(
                f"{self.name} ({self.address}) ended with status {status}: {self.last_line()}"
            )

    def last_line(self) -> str:
        """Returns the last line of the log with "error", else the last line."""
        size = os.fstat(self.log.fileno()).st_size
        tail = os.pread(self.log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(
            errors="replace"
        )
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["it has logged nothing"])[-1]


class Processes:
    """Server processes, in the order of their start; `now` returns seconds, `sleep` waits for
    seconds.
    """

    def __init__(self, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self.now, self._sleep = now, sleep
        self.servers: list[ServerProcess] = []
        self._reserved: list[socket.socket] = []

    def port(self) -> int:
        """Returns a port that was free, each time another one, and reserves it until `close`.

        On Linux a socket that never listens keeps the port from other processes, but not from a
        server that names it and sets SO_REUSEADDR, as gunicorn and ZMQ do. Other systems refuse
        both.
        """
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        port = int(reserved.getsockname()[1])
        self._reserved.append(reserved)
        if sys.platform != "linux":
            reserved.close()
        return port

    def start(self, name: str, port: int, command: Sequence[str]) -> ServerProcess:
        """Starts a server that listens at a port; call `wait` before use."""
        server = ServerProcess(name, command, port, inherited(os.environ))
        self.servers.append(server)
        return server

    def wait(self, server: ServerProcess, limit_s: float = START_LIMIT_S) -> None:
        """Waits until the server is healthy.

        Raises FleetError when it ends, and after `limit_s`.
        """
        give_up_s = self.now() + limit_s
        while not server.is_healthy():
            server.check()
            self.pause(
                give_up_s, f"{server.name} is not healthy after {limit_s:g} s: {server.last_line()}"
            )

    def pause(self, give_up_s: float, complaint: str) -> None:
        """Waits a moment. Raises FleetError with the complaint when it is late."""
        if self.now() > give_up_s:
            raise FleetError(complaint)
        self._sleep(LOOK_AGAIN_S)

    def check(self) -> None:
        for server in self.servers:
            server.check()

    def close(self) -> None:
        """Ends all servers: by SIGTERM, and after `STOP_LIMIT_S` by SIGKILL."""
        try:
            self._signal(signal.SIGTERM)
            give_up_s = self.now() + STOP_LIMIT_S
            while self.now() < give_up_s and any(it.process.poll() is None for it in self.servers):
                self._sleep(LOOK_AGAIN_S)
        finally:
            # A second Ctrl-C gets here, too.
            self._signal(signal.SIGKILL)
            for server in self.servers:
                server.process.wait()
                server.log.close()
            for reserved in self._reserved:
                reserved.close()

    def _signal(self, number: signal.Signals) -> None:
        for server in self.servers:
            if server.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(server.process.pid, number)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without variables that configure servers; PYTHONPATH names this code."""
    strange = {name for name in environ if name in SETTINGS or name.startswith(STRANGE)}
    kept = {name: value for name, value in environ.items() if name not in strange}
    return kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH"))))
    }


REPLY_TOKENS = 16
CACHE_SHARE = 0.75
"""The workload's tokens over the capacity of all caches:

each prefix fits once, but not in every pod.
"""
RHYTHM = {
    **{"max-num-seqs": "8", "prefill-overhead": "20ms", "prefill-time-per-token": "400us"},
    **{"inter-token-latency": "10ms", "time-factor-under-load": "2"},
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


def check_flags(flags: Sequence[str]) -> None:
    """Raises UsageError for flags that are no settings, and for settings in `OWN`."""
    given = parse(flags)
    if given.version or given.config is not None:
        raise UsageError("flags --config and --version cannot be given to a fleet")
    for name in given.values:
        if name in OWN:
            raise UsageError(f"flag --{name} cannot be given: the fleet sets it itself")


def pod_flags(settings: Settings, flags: Sequence[str], workload: Workload, pods: int) -> list[str]:
    """Returns the flags of one of so many pods; `flags`, parsed as `settings`, override the fleet's
    own.
    """
    block = settings.kvcache.block_size
    length = workload.longest_tokens + REPLY_TOKENS
    # A pod's part of the workload, but room for two prompts at least, and the block that is never
    # used.
    part = math.ceil(workload.distinct_tokens / CACHE_SHARE / pods / block)
    usual = {
        **RHYTHM,
        "log-level": "warning",
        "graceful-timeout": "1s",
        "max-model-len": str(max(4096, length * 5 // 4)),
        "kv-cache-size": str(1 + max(part, 2 * math.ceil(length / block))),
        "event-flush-interval": "20ms",
    }
    words = [word for name, value in usual.items() for word in (f"--{name}", value)]
    return [
        *words,
        "--enable-kvcache",
        "--enable-prompt-tokens-details",
        "--server-dev-mode",
        *flags,
    ]


class Fleet:
    """Pods that send KV events to an indexer.

    A pod's address, host:port, is also its name in the index.
    """

    def __init__(
        self, pods: Sequence[str], indexer: Indexer, processes: Processes, settings: Settings
    ) -> None:
        self.pods, self.indexer, self.processes = tuple(pods), indexer, processes
        self.model = settings.model.served_names[0]
        # Long enough to fill a block with any tokenizer.
        self._marks = (
            f"Mark {number}:" + " and" * (2 * settings.kvcache.block_size) for number in count()
        )

    def forget(self) -> None:
        """Empties the pods' caches and waits until the index follows.

        Raises FleetError when that fails.
        """
        give_up_s = self.processes.now() + SETTLE_LIMIT_S
        for pod in self.pods:
            # Refused while requests run: a client that left may have some for a moment.
            while b"false" in _post(pod, "/reset_prefix_cache", b""):
                self.processes.pause(give_up_s, f"pod {pod} does not empty its cache")
        self.settle()

    def settle(self) -> None:
        """Waits until the index has a new prompt of every pod, and so all events before."""
        processes = self.processes
        give_up_s, mark_until_s = processes.now() + SETTLE_LIMIT_S, -math.inf
        missing = list(self.pods)
        while missing:
            if processes.now() > mark_until_s:
                body = {"model": self.model, "prompt": next(self._marks), "max_tokens": 1}
                mark = Incoming(COMPLETIONS, msgspec.json.encode(body))
                for pod in self.pods:
                    _post(pod, COMPLETIONS, mark.body)
                mark_until_s = processes.now() + EVENT_LIMIT_S
            processes.check()
            processes.pause(
                give_up_s, f"KV events of {', '.join(missing)} do not reach the indexer"
            )
            try:
                scores = self.indexer.scores(mark)
            except IndexerError as error:
                processes.check()
                raise FleetError(f"the indexer gives no scores: {error}") from error
            missing = [pod for pod in self.pods if pod not in scores]


@contextmanager
def running_fleet(
    settings: Settings,
    flags: Sequence[str],
    workload: Workload,
    pods: int,
    seed: int,
    processes: Processes,
    progress: Callable[[int], None],
) -> Iterator[Fleet]:
    """Yields a fleet that is ready.

    Raises FleetError, with a line of the log, if one does not start.
    """
    of_pods = pod_flags(settings, flags, workload, pods)
    try:
        events = f"tcp://{HOST}:{processes.port()}"
        for number in range(-1, pods):
            port = processes.port()
            own = [
                "--seed",
                str(seed + number),
                *of_pods,
                "--pod-ip",
                HOST,
                "--zmq-endpoint",
                events,
            ]
            if number < 0:
                own = [
                    "--log-level",
                    "warning",
                    *flags,
                    "--role",
                    "indexer",
                    "--kv-index-bind",
                    events,
                ]
            name = "indexer" if number < 0 else f"pod {number}"
            processes.start(name, port, [*MODULE, *own, "--host", HOST, "--port", str(port)])
        for number, server in enumerate(processes.servers, 1):
            processes.wait(server)
            progress(number)
        first, *others = (server.address for server in processes.servers)
        fleet = Fleet(others, Indexer(first), processes, settings)
        fleet.settle()
        yield fleet
    finally:
        processes.close()


def _post(pod: str, path: str, body: bytes) -> bytes:
    try:
        status, answer = exchange(pod, "POST", path, body, timeout_s=30.0)
    except OSError as error:
        raise FleetError(f"pod {pod} does not answer: {error}") from error
    if status != 200:
        raise FleetError(
            f"pod {pod} answers {path} with status {status}: {answer.decode(errors='replace')}"
        )
    return answer
