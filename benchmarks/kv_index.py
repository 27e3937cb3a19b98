"""What the index of KV blocks costs, against a dict of sets per block with keys by cbor2 and SHA-256.

Rates are per second of CPU time, so for one core, and those of the best round: neighbours on the machine only
ever take away. Events come over a TCP socket from another process.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import subprocess
import sys
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any

import cbor2
import msgspec
import zmq
from cachetools import LRUCache

from app.kvcache.events import BlockHash, BlockStored, EventBatch
from app.kvindex.cost import weigh_bytes
from app.kvindex.index import Index
from app.kvindex.memory import MemoryBackend
from app.kvindex.pool import Pool, PoolSettings
from app.kvindex.replay import Replays
from app.kvindex.subscriber import Subscriber, SubscriberSettings
from app.kvindex.targets import FixedTargets, Target
from benchmarks.options import parser
from benchmarks.report import number, ratio, show, show_machine
from benchmarks.rounds import interleaved

MODEL, BLOCK, VOCABULARY = "m", 16, 128_000
NAIVE, OURS, KEYS = "dict of sets, cbor2", "index", "index, keys are known"
SHAPES = {
    "1 x 64 blocks": (1, 64),
    "4 x 16 blocks": (4, 16),
    "16 x 4 blocks": (16, 4),
    "16 x 1 block": (16, 1),
}
PUBLISHED = b"kv@pod%d@" + MODEL.encode()

Hash = Callable[[Sequence[int], bytes], Iterator[int]]


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second of CPU time."""

    per_s: float


class Naive:
    """The index as one writes it first: (model, hash) -> {(pod, tier)}, and engine key -> key."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, int], set[tuple[str, str]]] = {}
        self.engine: dict[tuple[str, int], int] = {}
        self.root = hashlib.sha256(cbor2.dumps("")).digest()

    def keys(self, tokens: Sequence[int], parent: bytes) -> Iterator[int]:
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            block = (parent, tuple(tokens[start : start + BLOCK]), None)
            parent = hashlib.sha256(cbor2.dumps(block, canonical=True)).digest()
            yield int.from_bytes(parent[-8:], "big")

    def score(self, tokens: Sequence[int]) -> dict[str, float]:
        scores: dict[str, float] = {}
        active: set[str] | None = None
        for key in self.keys(tokens, self.root):
            here = {pod: 1.0 for pod, _ in self.blocks.get((MODEL, key), ())}
            active = set(here) if active is None else active & set(here)
            if not active:
                break
            for pod in active:
                scores[pod] = scores.get(pod, 0.0) + here[pod]
        return scores

    def store(self, pod: str, event: BlockStored) -> None:
        for engine, key in zip(event.block_hashes, self.keys(event.token_ids, self.root), strict=True):
            self.blocks.setdefault((MODEL, key), set()).add((pod, "gpu"))
            self.engine[MODEL, engine] = key  # type: ignore[index]


class Fleet:
    """Events of pods that hold prompts, from a seed."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = Random(seed)

    def tokens(self, blocks: int) -> list[int]:
        return [self._rng.randrange(VOCABULARY) for _ in range(blocks * BLOCK)]

    def event(self, tokens: Sequence[int]) -> BlockStored:
        """A store as vLLM 0.32 publishes it."""
        hashes: list[BlockHash] = [self._rng.getrandbits(64) for _ in range(len(tokens) // BLOCK)]
        return BlockStored(
            hashes,
            None,
            list(tokens),
            BLOCK,
            None,
            extra_keys=[None] * len(hashes),
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    if argv[:1] == ["publish"]:
        return publish(*map(int, argv[1:]))
    options = _options(argv)
    show_machine()
    # As in a worker of the server: what is there for good is not looked through again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    _show_scores(options)
    _show_ingest(options)
    _show_memory(options)
    _show_tables(options)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("kv_index", __doc__, rounds=5)
    flags.add_argument("--pods", type=int, default=100, help="pods that hold prompts")
    flags.add_argument("--tokens", type=int, default=8192, help="tokens of the prompt that is scored")
    flags.add_argument("--blocks", type=int, default=100_000, help="blocks that are published in a round")
    return flags.parse_args(argv)


def _show_scores(options: argparse.Namespace) -> None:
    fleet, naive, index = Fleet(), Naive(), Index(MemoryBackend())
    blocks = options.tokens // BLOCK
    prompt = fleet.tokens(blocks)
    for pod in range(options.pods):
        # Every fourth pod has all of it, the others less.
        held = blocks if pod % 4 == 0 else 1 + pod * blocks // options.pods
        event = fleet.event(prompt[: held * BLOCK])
        naive.store(f"pod{pod}", event)
        index.ingest(EventBatch(1.0, [event], 0), f"pod{pod}", MODEL)
    keys = index.block_keys(MODEL, prompt)
    if {score.pod: score.score for score in index.score(MODEL, prompt)} != naive.score(prompt):
        raise RuntimeError("the scores differ")
    asked = {
        NAIVE: lambda: naive.score(prompt),
        OURS: lambda: index.score(MODEL, prompt),
        KEYS: lambda: index.score(MODEL, keys=keys),
    }
    rounds = interleaved(asked, options.rounds, lambda how: Rate(_calls_per_s(asked[how])))
    title = f"Scores of a prompt of {options.tokens:,} tokens over {options.pods} pods that share it"
    _show_rates(title, "requests/s", rounds, NAIVE)


def _calls_per_s(call: Callable[[], object], least_s: float = 0.3) -> float:
    began, calls = time.process_time(), 0
    while time.process_time() - began < least_s:
        call()
        calls += 1
    return calls / (time.process_time() - began)


def _show_ingest(options: argparse.Namespace) -> None:
    for title, (events, blocks) in SHAPES.items():
        measure = partial(_ingest_rate, options, events, blocks)
        rounds = interleaved((NAIVE, OURS), options.rounds, measure)
        _show_rates(f"From the socket into the index, {title} a message", "blocks/s", rounds, NAIVE)


def _ingest_rate(options: argparse.Namespace, events: int, blocks: int, how: str) -> Rate:
    messages = max(1, options.blocks // (events * blocks))
    command = [sys.executable, "-m", "benchmarks.kv_index", "publish"]
    arguments = map(str, (messages, events, blocks, options.pods))
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE) as publisher:
        assert publisher.stdout is not None
        endpoint = publisher.stdout.readline().decode().strip()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            receive = _receive_naive if how == NAIVE else _receive
            seconds = receive(context, endpoint, messages)
        finally:
            publisher.kill()
            context.destroy(linger=0)
    return Rate(messages * events * blocks / seconds)


def publish(messages: int, events: int, blocks: int, pods: int) -> int:
    """Publish that many messages to the first subscriber, all at once. Exit status."""
    fleet, encode = Fleet(), msgspec.msgpack.encode
    payloads = [
        encode(EventBatch(1.0, [fleet.event(fleet.tokens(blocks)) for _ in range(events)], 0))
        for _ in range(messages)
    ]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.sndhwm = 0
    print(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}", flush=True)
    socket.recv()
    for at, payload in enumerate(payloads):
        sequence = (at // pods).to_bytes(8, "big")
        socket.send_multipart([PUBLISHED % (at % pods), sequence, payload])
    context.destroy()
    return 0


def _receive(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, messages: int) -> float:
    """Seconds of CPU time for all messages, from the socket into the index."""
    index = Index(MemoryBackend())
    pool = Pool(index, Replays(None), PoolSettings(most_messages=1 << 30, most_bytes=1 << 40))
    settings = SubscriberSettings(bind=None, hwm=0)
    targets = FixedTargets([Target(endpoint)])
    subscriber = Subscriber(pool, index.losses, context, settings, [targets])
    took = _until_all(
        context, lambda now: subscriber.step(now) | pool.step(now), lambda: _applied(pool), messages
    )
    subscriber.close()
    if index.losses.messages or index.losses.events:
        raise RuntimeError(f"not all was used: {index.losses.messages} {index.losses.events}")
    return took


def _applied(pool: Pool) -> int:
    return sum(position.sequence + 1 for position in pool.positions() if position.sequence is not None)


def _receive_naive(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, messages: int) -> float:
    index, decode, done = Naive(), msgspec.msgpack.Decoder(EventBatch).decode, count()
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = 0
    socket.subscribe(b"")
    socket.connect(endpoint)

    def step(now: float) -> bool:
        try:
            topic, _, payload = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        pod = topic.decode().split("@")[1]
        for event in decode(payload).events:
            assert isinstance(event, BlockStored)
            index.store(pod, event)
        next(done)
        return True

    took = _until_all(context, step, lambda: int(repr(done)[6:-1]), messages)
    socket.close()
    return took


def _until_all(
    context: zmq.Context[zmq.Socket[bytes]],
    step: Callable[[float], bool],
    done: Callable[[], int],
    messages: int,
) -> float:
    began, idle = time.process_time(), 0.0
    while True:
        before = time.process_time()
        if not step(0.0):
            if done() >= messages:
                return time.process_time() - began - idle
            time.sleep(0.0002)
            idle += time.process_time() - before
    raise AssertionError


def _show_rates(title: str, unit: str, rounds: Mapping[str, Sequence[Rate]], reference: str) -> None:
    best = {how: max(seen, key=lambda rate: rate.per_s).per_s for how, seen in rounds.items()}
    rows = [(how, number(per_s, 0), ratio(per_s, best[reference])) for how, per_s in best.items()]
    show(title, ("how", unit, "ratio"), rows)


def _show_memory(options: argparse.Namespace) -> None:
    cases: dict[str, tuple[int, int, bool]] = {
        "1 pod": (1, 50_000, False),
        f"{options.pods} pods, nothing shared": (options.pods, 500, False),
        f"{options.pods} pods, all shared": (options.pods, 500, True),
        "10,000 pods, nothing shared": (10_000, 5, False),
    }
    rows = []
    for name, (pods, blocks, shared) in cases.items():
        ours, naive = (_bytes_per_pair(make, pods, blocks, shared) for make in (_filled_index, _filled_naive))
        bound = _bound_per_pair(pods, blocks, shared)
        rows.append((name, number(ours, 0), number(bound, 0), number(naive, 0), ratio(ours, naive)))
    columns = ("who holds the blocks", "index", "reckoned by cost-aware", NAIVE, "ratio")
    show("Bytes of memory for each pair of block and pod", columns, rows)


def _filled(pods: int, blocks: int, shared: bool, tell: Callable[[str, BlockStored], object]) -> None:
    fleet = Fleet()
    prompt = fleet.tokens(blocks)
    for pod in range(pods):
        tell(f"pod{pod}", fleet.event(prompt if shared else fleet.tokens(blocks)))


def _filled_index(pods: int, blocks: int, shared: bool) -> object:
    # Bytes are weighed here, too, so that what is reckoned can be shown beside what is used.
    index = Index(MemoryBackend(1 << 40, weigh_bytes))
    _filled(pods, blocks, shared, lambda pod, event: index.ingest(EventBatch(1.0, [event], 0), pod, MODEL))
    return index


def _filled_naive(pods: int, blocks: int, shared: bool) -> object:
    naive = Naive()
    _filled(pods, blocks, shared, naive.store)
    return naive


def _bytes_per_pair(make: Callable[[int, int, bool], object], pods: int, blocks: int, shared: bool) -> float:
    tracemalloc.start()
    held = make(pods, blocks, shared)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del held
    return used / (pods * blocks)


def _bound_per_pair(pods: int, blocks: int, shared: bool) -> float:
    index: Any = _filled_index(pods, blocks, shared)
    return float(index.size().weight) / (pods * blocks)


def _show_tables(options: argparse.Namespace) -> None:
    """Why the table of blocks is an OrderedDict."""
    tables: dict[str, Callable[[], MutableMapping[int, int]]] = {
        "cachetools.LRUCache": lambda: LRUCache(1 << 40),
        "OrderedDict": OrderedDict,
    }
    rng = Random(1)
    keys = [rng.getrandbits(64) for _ in range(options.blocks)]
    rounds = interleaved(tables, options.rounds, lambda name: Rate(_puts_per_s(tables[name](), keys)))
    title = "The table of blocks: a new block, then looking it up"
    _show_rates(title, "blocks/s", rounds, "cachetools.LRUCache")


def _puts_per_s(table: MutableMapping[int, int], keys: Sequence[int]) -> float:
    touch = getattr(table, "move_to_end", lambda key: None)
    began = time.process_time()
    for key in keys:
        table[key] = key
    for key in keys:
        table[key]
        touch(key)
    return len(keys) / (time.process_time() - began)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
