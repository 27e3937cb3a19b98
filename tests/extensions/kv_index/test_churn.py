"""A day of 100 pods, in seconds:

in the end the index is what their caches hold, no more and no less.
"""

import heapq
from collections.abc import Iterator
from random import Random

import pytest

from app.core.engine.kvcache.cache import KVCache
from app.core.engine.kvcache.events import EventBatch, encoder
from app.core.engine.kvcache.hashing import BlockHasher, ExtraKeys
from app.core.engine.kvcache.publishing import LayoutName
from app.core.engine.lora import Adapter
from app.extensions.kv_index.backend import Backend
from app.extensions.kv_index.copies import set_bits
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.messages import PublishedMessage
from app.extensions.kv_index.pool import Pool
from tests.core.kvcache.caches import Replying, admit
from tests.extensions.kv_index.publisher import work

PODS = 30
DAY_S = 24 * 3600.0
BLOCK = 4
REQUESTS_PER_POD = 25
LAYOUTS_WITH_EXTRAS: tuple[LayoutName, ...] = ("map", "0.17", "0.19", "0.20", "0.22")


class Fleet:
    """Every block that was ever computed: what engines call it, and its request key."""

    def __init__(self, index: Index, hasher: BlockHasher) -> None:
        self.index = index
        self.hasher = hasher
        self.request_keys: dict[bytes, int] = {}

    def note(self, tokens: list[int], adapter: str | None, salt: str | None) -> None:
        keys = ExtraKeys(BLOCK, Adapter(adapter) if adapter else None, salt)
        names = self.hasher.hashes(tokens, keys.hashed(0, len(tokens) // BLOCK))
        keyed = self.index.block_keys("m", tokens, lora=adapter, salt=salt)
        self.request_keys.update(zip(names, keyed, strict=True))


class Pod:
    """A pod that serves requests, is reset and restarts, on a network that repeats itself."""

    def __init__(self, name: str, fleet: Fleet, rng: Random) -> None:
        self.name = name
        self.fleet = fleet
        self.rng = rng
        self.encode = encoder(rng.choice(LAYOUTS_WITH_EXTRAS))
        self.start()

    def start(self) -> None:
        self.cache = KVCache(self.rng.randint(40, 120), self.fleet.hasher)
        self.sequence = 0
        self.sent = list[PublishedMessage]()
        self.running: list[tuple[Replying, list[int], str | None, str | None]] = []

    def live(self, now: float) -> Iterator[PublishedMessage]:
        chance = self.rng.random()
        if chance < 0.005:
            self.start()
        elif chance < 0.015:
            self.cache.discard()
            self.running.clear()
            self._finish_all()
        else:
            self._serve()
        events = self.cache.take_events()
        if events:
            payload = self.encode(EventBatch(now, events, 0))
            self.sent.append(PublishedMessage(self.name, "m", self.sequence, payload))
            self.sequence += 1
            yield self.sent[-1]
            if self.rng.random() < 0.05:
                yield self.rng.choice(self.sent[-20:])

    def _serve(self) -> None:
        """Begin a request and go on with others; what has no room ends the oldest."""
        rng = self.rng
        first = rng.randrange(8) * 100
        tokens = list(range(first, first + rng.randrange(4, 60)))
        tokens += [rng.randrange(30_000) for _ in range(rng.randrange(30))]
        adapter = rng.choice([None, None, "alice"])
        salt = rng.choice([None, None, "salt"])
        new_sequence = Replying(self.cache, tokens, Adapter(adapter) if adapter else None, salt)
        while admit(self.cache, new_sequence) is None:
            self._finish()
        self.running.append((new_sequence, tokens, adapter, salt))
        for request in list(self.running):
            sequence, ids, lora, cache_salt = request
            new_ids = [rng.randrange(30_000) for _ in range(rng.randrange(1, 12))]
            ids += new_ids
            if not sequence.append(self.cache, new_ids):
                self.cache.release(sequence)
                self.running.remove(request)
            self.fleet.note(ids, lora, cache_salt)
        if len(self.running) > 3:
            self._finish()

    def _finish(self) -> None:
        self.cache.release(self.running.pop(0)[0])

    def _finish_all(self) -> None:
        for sequence in list(self.cache.running):
            self.cache.release(sequence)

    def held(self) -> set[int]:
        return {self.fleet.request_keys[name] for name in self.cache.pool._cached}


def held_by_index(backend: Backend, keys: list[int]) -> dict[str, set[int]]:
    copies, holders, tiers = backend.lookup(keys)
    assert len(copies) == len(keys), "a block is missing"
    held: dict[str, set[int]] = {}
    for key, masks in zip(keys, copies, strict=True):
        assert len(masks) == 1 and tiers[0] == "gpu"
        for number in set_bits(masks[0]):
            holder = holders[number]
            if holder is not None:
                held.setdefault(holder.source.pod, set()).add(key)
    return held


@pytest.mark.timeout(60)
def test_index_equals_the_union_of_the_caches_after_a_day_of_events(backend: Backend) -> None:
    rng = Random(24)
    index = Index(backend, block_size=BLOCK)
    fleet = Fleet(index, BlockHasher("sha256_cbor", BLOCK, "0", rng))
    pool = Pool(index)
    pods = [Pod(f"pod{number}", fleet, Random(number)) for number in range(PODS)]
    mean_s = DAY_S / REQUESTS_PER_POD
    due = [(rng.expovariate(1 / mean_s), number) for number in range(PODS)]
    heapq.heapify(due)
    while due[0][0] < DAY_S:
        now, number = due[0]
        for message in pods[number].live(now):
            pool.put(message)
        if rng.random() < 0.002:
            pool.remove_pod(pods[number].name)
            pods[number].start()
        heapq.heapreplace(due, (now + rng.expovariate(1 / mean_s), number))
        work(pool)
    for pod in pods:  # a restart shows with the first events after it
        while not pod.sequence:
            for message in pod.live(DAY_S):
                pool.put(message)
    work(pool)
    expected = {pod.name: held for pod in pods if (held := pod.held())}
    everything = sorted(set().union(*expected.values()))
    assert held_by_index(backend, everything) == expected
    assert backend.size().copies == sum(map(len, expected.values())) > PODS * 10
    assert set(index.metrics.skipped_messages) <= {"duplicate"}
    assert index.metrics.skipped_messages["duplicate"] > 10 and index.metrics.skipped_events == {}
