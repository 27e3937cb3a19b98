"""How the processes of a fleet are set up: the flags of pods and indexer."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from app.fleet.ports import HOST
from app.load.workload import Workload
from config import ConfigError, Settings
from config.flags import parse

REPLY_TOKENS = 16
CACHE_SHARE = 0.75
"""The workload's tokens over what all caches hold together: each prefix fits in once, but not often."""
RHYTHM = {
    "max-num-seqs": "8",
    "prefill-overhead": "20ms",
    "prefill-time-per-token": "400us",
    "inter-token-latency": "10ms",
    "time-factor-under-load": "2",
}
"""A model that computes 2,500 prompt tokens a second when it is alone."""
OWN = frozenset(
    ("host", "port", "pod-ip", "role", "data-parallel-size", "data-parallel-rank")
    + ("api-key", "ssl-certfile", "ssl-keyfile", "self-signed-certs")
    + ("enable-kvcache", "zmq-endpoint", "kv-events-topic")
    + ("kv-index", "kv-index-bind", "kv-index-pods", "kv-index-topic")
)
"""Settings that make the fleet what it is, or that its proxy would not come along with."""
MODULE = (sys.executable, "-m", "app")


@dataclass(frozen=True, slots=True)
class Plan:
    """Flags for `python -m app`: those of every pod, those of the indexer, and the names of the model."""

    pod_flags: tuple[str, ...]
    indexer_flags: tuple[str, ...]
    seed: int
    model: str
    """As requests call it."""
    block_size: int
    """Tokens of a pod's block."""

    def indexer(self, port: int, events: str) -> Sequence[str]:
        """The command of the indexer, which receives KV events at the ZMQ address `events`."""
        own = ("--role", "indexer", "--kv-index-bind", events)
        return (*MODULE, *self.indexer_flags, *_at(port), *own)

    def pod(self, number: int, port: int, events: str) -> Sequence[str]:
        """The command of a pod; its identity towards the indexer is its address."""
        seed = ("--seed", str(self.seed + number))
        return (*MODULE, *seed, *self.pod_flags, *_at(port), "--pod-ip", HOST, "--zmq-endpoint", events)


def check_flags(flags: Sequence[str]) -> None:
    """ConfigError for flags that are no settings, or settings that only the fleet itself may give."""
    given = parse(flags)
    if given.version or given.config is not None:
        raise ConfigError("flags --config and --version cannot be given to a fleet")
    for name in given.values:
        if name in OWN:
            raise ConfigError(f"flag --{name} cannot be given: the fleet sets it itself")


def make_plan(settings: Settings, flags: Sequence[str], workload: Workload, pods: int, seed: int) -> Plan:
    """The plan of so many pods for `workload`. What `flags` say (so do `settings`) wins over the usual."""
    block = settings.kvcache.block_size
    length = workload.longest_tokens + REPLY_TOKENS
    usual = {
        **RHYTHM,
        "log-level": "warning",
        "graceful-timeout": "1s",
        "max-model-len": str(max(4096, length * 5 // 4)),
        "kv-cache-size": str(_blocks(workload.distinct_tokens, length, block, pods)),
        "event-flush-interval": "20ms",
    }
    switches = ("--enable-kvcache", "--enable-prompt-tokens-details", "--server-dev-mode")
    return Plan(
        pod_flags=(*_flags(usual), *switches, *flags),
        indexer_flags=("--log-level", "warning", *flags),
        seed=seed,
        model=settings.model.served_names[0],
        block_size=block,
    )


def _blocks(distinct_tokens: int, longest_tokens: int, block: int, pods: int) -> int:
    """Blocks of each cache: the pods' part of what there is to cache, but room for two prompts at least."""
    part = distinct_tokens / CACHE_SHARE / pods
    return 1 + max(math.ceil(part / block), 2 * math.ceil(longest_tokens / block))


def _flags(values: dict[str, str]) -> tuple[str, ...]:
    return tuple(word for name, value in values.items() for word in (f"--{name}", value))


def _at(port: int) -> tuple[str, ...]:
    return ("--host", HOST, "--port", str(port))
