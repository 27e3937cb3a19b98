"""The pods and the indexer of a fleet: their flags and start, and the wait until the index is up to date."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

import msgspec

from app.lab.fleet.processes import HOST, FleetError, Processes
from app.lab.fleet.routing import Incoming, Indexer
from app.lab.load.policies import IndexerError
from app.lab.load.workload import Workload
from app.serving.http.client import COMPLETIONS, exchange
from config import Settings, UsageError
from config.flags import parse

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
LOOK_AGAIN_S = 0.02
MARK = "Mark {number}:"
MARK_WORD = " and"


@dataclass(frozen=True, slots=True)
class Plan:
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


def make_plan(settings: Settings, flags: Sequence[str], workload: Workload, pods: int, seed: int) -> Plan:
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
    return Plan(
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
        plan: Plan,
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
    plan: Plan,
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
