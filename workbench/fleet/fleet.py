"""A fleet: pods, and an indexer that gets their KV events."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import msgspec

from app.core.settings import settings_type
from app.extensions.plugins.policies import Incoming
from app.shared.http_client import COMPLETIONS, exchange
from config import Settings, UsageError
from config.command_line import parse
from workbench.fleet.indexer import Indexer
from workbench.fleet.processes import HOST, FleetError, Processes, ServerProcess
from workbench.fleet.workload import Workload
from workbench.load.policies import IndexerError

REPLY_TOKENS = 16
CACHE_SHARE = 0.75
"""The workload's tokens over the capacity of all caches: each prefix fits once, but not in every
pod.
"""
LATENCY_FLAGS = {
    "max-num-seqs": "8",
    "prefill-overhead": "20ms",
    "prefill-time-per-token": "400us",
    "inter-token-latency": "10ms",
    "time-factor-under-load": "2",
}
"""Latency flags of a pod: 2,500 prompt tokens per second without load."""
FLEET_SETTINGS = frozenset(
    (
        "host",
        "port",
        "pod-ip",
        "role",
        "data-parallel-size",
        "data-parallel-rank",
        "api-key",
        "ssl-certfile",
        "ssl-keyfile",
        "self-signed-certs",
        "enable-kvcache",
        "zmq-endpoint",
        "kv-events-topic",
        "kv-index",
        "kv-index-bind",
        "kv-index-pods",
        "kv-index-topic",
    )
)
"""Settings that only the fleet sets, or that its proxy does not support."""
MODULE = (sys.executable, "-P", "-m", "app")
SETTLE_TIMEOUT_S = 15.0
EVENT_TIMEOUT_S = 2.0
POST_TIMEOUT_S = 30.0


def check_flags(flags: Sequence[str]) -> None:
    """Raises UsageError for flags that are not settings, and for settings in `FLEET_SETTINGS`."""
    parsed = parse(flags, {}, settings_type())
    if parsed.version or parsed.config is not None:
        raise UsageError("the fleet command does not accept --config or --version")
    for name in parsed.values:
        if name in FLEET_SETTINGS:
            raise UsageError(f"flag --{name} cannot be used, because the fleet sets it")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """A fleet to start."""

    flags: Sequence[str]
    """Flags of servers, which override those of the fleet."""
    settings: Settings
    """The settings of `flags`."""
    workload: Workload
    pods: int
    seed: int


def pod_flags(
    plan: FleetPlan,
    latency_flags: Mapping[str, str] = LATENCY_FLAGS,
    reply_tokens: int = REPLY_TOKENS,
) -> list[str]:
    """Returns the flags that all pods have in common."""
    workload = plan.workload
    block_size = plan.settings.kvcache.block_size
    max_tokens = workload.longest_tokens + reply_tokens
    # A pod's part of the workload, but room for two prompts at least, and the block that is never
    # used.
    workload_blocks = math.ceil(workload.distinct_tokens / CACHE_SHARE / plan.pods / block_size)
    cache_blocks = 1 + max(workload_blocks, 2 * math.ceil(max_tokens / block_size))
    values = {
        **latency_flags,
        "log-level": "warning",
        "graceful-timeout": "1s",
        "max-model-len": str(max(4096, max_tokens * 5 // 4)),
        "kv-cache-size": str(cache_blocks),
        "event-flush-interval": "20ms",
    }
    words = []
    for name, value in values.items():
        words += [f"--{name}", value]
    return [
        *words,
        "--enable-kvcache",
        "--enable-prompt-tokens-details",
        "--server-dev-mode",
        *plan.flags,
    ]


class Fleet:
    """Pods that send KV events to an indexer.

    A pod's address, host:port, is also its name in the index.
    """

    def __init__(
        self, pods: Sequence[str], indexer: Indexer, processes: Processes, settings: Settings
    ) -> None:
        self.pods = tuple(pods)
        self.indexer = indexer
        self.processes = processes
        self.model = settings.model.served_names[0]
        # Long enough to fill a block with any tokenizer.
        filler = " and" * (2 * settings.kvcache.block_size)
        self._marks = (f"Mark {number}:{filler}" for number in count())

    def clear_caches(self) -> None:
        """Empties the pods' caches and waits until the index follows.

        Raises:
            FleetError: A cache is not empty, or the index does not follow, in time.
        """
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        for pod in self.pods:
            # Refused while requests run: a client that left may have some for a moment.
            while b"false" in _post(pod, "/reset_prefix_cache", b""):
                self.processes.pause(deadline_s, f"pod {pod} does not empty its cache")
        self.wait_for_index()

    def wait_for_index(self) -> None:
        """Waits until the index has a new prompt of every pod, and so all earlier events.

        Raises:
            FleetError: The indexer fails, or events do not arrive in time.
        """
        processes = self.processes
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        mark_deadline_s = -math.inf
        missing = list(self.pods)
        while missing:
            if time.monotonic() > mark_deadline_s:
                body = {"model": self.model, "prompt": next(self._marks), "max_tokens": 1}
                mark = Incoming(COMPLETIONS, msgspec.json.encode(body))
                for pod in self.pods:
                    _post(pod, COMPLETIONS, mark.body)
                mark_deadline_s = time.monotonic() + EVENT_TIMEOUT_S
            processes.check()
            processes.pause(
                deadline_s, f"KV events of {', '.join(missing)} do not reach the indexer"
            )
            try:
                scores = self.indexer.scores(mark)
            except IndexerError as error:
                processes.check()
                raise FleetError(f"the indexer did not return scores: {error}") from error
            missing = [pod for pod in self.pods if pod not in scores]


@contextmanager
def running_fleet(
    plan: FleetPlan, processes: Processes, progress: Callable[[int], None]
) -> Iterator[Fleet]:
    """Yields a fleet that is ready; `progress` receives the number of healthy servers.

    Raises:
        FleetError: A server does not start; the message has a line of its log.
    """
    common_flags = pod_flags(plan)
    try:
        events = f"tcp://{HOST}:{processes.port()}"
        start_indexer(processes, plan.flags, events)
        for number in range(plan.pods):
            _start(
                processes,
                f"pod {number}",
                [
                    "--seed",
                    str(plan.seed + number),
                    *common_flags,
                    "--pod-ip",
                    HOST,
                    "--zmq-endpoint",
                    events,
                ],
            )
        for healthy, server in enumerate(processes.servers, 1):
            processes.wait(server)
            progress(healthy)
        indexer, *addresses = (server.address for server in processes.servers)
        fleet = Fleet(addresses, Indexer(indexer), processes, plan.settings)
        fleet.wait_for_index()
        yield fleet
    finally:
        processes.close()


def start_indexer(processes: Processes, flags: Sequence[str], events: str) -> ServerProcess:
    """Starts an indexer, which binds the address `events`; call `Processes.wait` before use."""
    role = ["--role", "indexer", "--kv-index-bind", events]
    return _start(processes, "indexer", ["--log-level", "warning", *flags, *role])


def _start(processes: Processes, name: str, flags: Sequence[str]) -> ServerProcess:
    port = processes.port()
    return processes.start(name, port, [*MODULE, *flags, "--host", HOST, "--port", str(port)])


def _post(pod: str, path: str, body: bytes) -> bytes:
    try:
        status, answer = exchange(pod, "POST", path, body, timeout_s=POST_TIMEOUT_S)
    except OSError as error:
        raise FleetError(f"pod {pod} does not respond: {error}") from error
    if status != 200:
        raise FleetError(
            f"pod {pod} returned status {status} for {path}: {answer.decode(errors='replace')}"
        )
    return answer
