"""Whatever is asked of the cache, it does what vLLM's rules, told plainly, do, and its books
balance.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.core.engine.kvcache.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
)
from app.core.engine.lora import Adapter
from tests.core.kvcache.caches import ALICE, Replying, admit, check, small_cache

Prefix = tuple[Any, ...]


@dataclass(eq=False)
class Room:
    """A block:

    how many use it, and the tokens from the start up to its end that it is cached for.
    """

    references: int = 0
    prefix: Prefix | None = None


@dataclass
class Run:
    """A sequence: whose it is (salt, adapter), its tokens, its blocks."""

    owner: Prefix
    ids: list[int]
    rooms: list[Room]
    stored: int


@dataclass
class PlainCache:
    """Events are ("stored", prefixes), ("removed", prefix) and ("cleared",)."""

    usable: int
    size: int
    runs: dict[str, Run] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = [Room() for _ in range(self.usable)]
        self.cached: list[Room] = []

    def begin(self, name: str, owner: Prefix, ids: list[int]) -> int | None:
        hits: list[Room] = []
        while (len(hits) + 1) * self.size <= len(ids) - 1:
            prefix = self._prefix(owner, ids, len(hits) + 1)
            rooms = [room for room in self.cached if room.prefix == prefix]
            if not rooms:
                break
            hits.append(rooms[0])
        needed = -(-len(ids) // self.size) - len(hits)
        if needed > len(self.free) - sum(room in self.free for room in hits):
            return None
        for room in hits:
            room.references += 1
            if room in self.free:
                self.free.remove(room)
        run = Run(owner, list(ids), hits + self._take(needed), len(hits))
        self.runs[name] = run
        self._store(run, len(ids))
        return len(hits) * self.size

    def append(self, name: str, ids: list[int]) -> bool:
        run = self.runs[name]
        run.ids += ids
        computed = len(run.ids) - 1
        needed = max(0, -(-computed // self.size) - len(run.rooms))
        enough = needed <= len(self.free)
        run.rooms += self._take(needed if enough else 0)
        self._store(run, min(computed, len(run.rooms) * self.size))
        return enough

    def finish(self, name: str) -> None:
        first = []
        last = []
        for room in reversed(self.runs.pop(name).rooms):
            room.references -= 1
            if not room.references:
                (last if room.prefix else first).append(room)
        self.free = first + self.free + last

    def reset(self) -> bool:
        if self.runs:
            return False
        for room in self.free:
            room.prefix = None
        self.cached = []
        self.events.append(("cleared",))
        return True

    def _prefix(self, owner: Prefix, ids: list[int], blocks: int) -> Prefix:
        return (*owner, *ids[: blocks * self.size])

    def _take(self, count: int) -> list[Room]:
        taken = self.free[:count]
        self.free = self.free[count:]
        for room in taken:
            if room.prefix:
                self.events.append(("removed", room.prefix))
                self.cached.remove(room)
            room.prefix = None
            room.references = 1
        return taken

    def _store(self, run: Run, computed: int) -> None:
        full = computed // self.size
        new = []
        for number in range(run.stored, full):
            room = run.rooms[number]
            room.prefix = self._prefix(run.owner, run.ids, number + 1)
            self.cached.append(room)
            new.append(room.prefix)
        if new:
            self.events.append(("stored", new))
        run.stored = max(run.stored, full)


few_tokens = st.integers(0, 1)
salts = st.sampled_from([None, "s"])
adapters = st.sampled_from([None, ALICE])


class Compared(RuleBasedStateMachine):
    """Our cache beside the plain one; hashes are told apart by the prefixes that they were stored
    with.
    """

    @initialize(usable=st.integers(1, 12), size=st.integers(1, 3))
    def make(self, usable: int, size: int) -> None:
        self.cache = small_cache(usable, size)
        self.plain = PlainCache(usable, size)
        self.names = iter(map(str, range(10_000)))
        self.sequences: dict[str, Replying] = {}
        self.prefix_of: dict[BlockHash, Prefix] = {}
        self.announced: Counter[BlockHash] = Counter()

    def running(self) -> bool:
        return bool(self.plain.runs)

    @rule(ids=st.lists(few_tokens, max_size=20), salt=salts, adapter=adapters)
    def begin(self, ids: list[int], salt: str | None, adapter: Adapter | None) -> None:
        name = next(self.names)
        free = self.cache.free
        sequence = Replying(self.cache, ids, adapter, salt)
        cached = admit(self.cache, sequence)
        assert cached == self.plain.begin(name, (salt, adapter), ids)
        if cached is None:
            assert self.cache.free == free
        else:
            self.sequences[name] = sequence

    @precondition(running)
    @rule(data=st.data(), ids=st.lists(few_tokens, max_size=5))
    def append(self, data: st.DataObject, ids: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.plain.runs)))
        assert self.sequences[name].append(self.cache, ids) == self.plain.append(name, ids)

    @precondition(running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.plain.runs)))
        self.cache.release(self.sequences.pop(name))
        self.plain.finish(name)

    @rule()
    def reset(self) -> None:
        assert self.cache.reset() == self.plain.reset()

    @invariant()
    def events_are_the_same_and_add_up_to_what_is_cached(self) -> None:
        if not hasattr(self, "cache"):
            return
        ours = [self.seen(event) for event in self.cache.take_events()]
        theirs = self.plain.events
        self.plain.events = []
        assert ours == theirs
        held = Counter(room.prefix for room in self.plain.cached)
        announced = Counter(
            {self.prefix_of[hash_]: count for hash_, count in self.announced.items()}
        )
        assert +announced == held

    @invariant()
    def the_books_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        check(self.cache)
        assert 0 <= self.cache.free == len(self.plain.free) <= self.cache.capacity
        assert len(self.cache.running) == len(self.plain.runs)
        assert self.cache.pool.usage == 1 - self.cache.free / self.cache.capacity

    def seen(self, event: KVEvent) -> tuple[Any, ...]:
        """The event as the plain cache tells it; what it says of tokens and parents is true."""
        match event:
            case BlockStored():
                size = event.block_size
                assert len(event.token_ids) == len(event.block_hashes) * size
                adapter = ALICE if event.lora_name else None
                parent = self.prefix_of.get(event.parent_block_hash or 0)
                assert (parent is None) == (event.parent_block_hash is None)
                salt = "s" if event.extra_keys and "s" in (event.extra_keys[0] or []) else None
                prefix = parent or (salt, adapter)
                for number, hash_ in enumerate(event.block_hashes):
                    prefix = (*prefix, *event.token_ids[number * size : (number + 1) * size])
                    assert self.prefix_of.setdefault(hash_, prefix) == prefix
                self.announced.update(event.block_hashes)
                return "stored", [self.prefix_of[hash_] for hash_ in event.block_hashes]
            case BlockRemoved():
                [hash_] = event.block_hashes
                self.announced[hash_] -= 1
                return "removed", self.prefix_of[hash_]
            case AllBlocksCleared():
                self.announced.clear()
                return ("cleared",)


class Adapters(RuleBasedStateMachine):
    """Adapters come and go, caching is switched, everything is discarded:

    the books balance all the same.
    """

    @initialize(usable=st.integers(1, 10))
    def make(self, usable: int) -> None:
        self.cache = small_cache(usable, 2)
        self.running: list[Replying] = []
        self.announced: Counter[BlockHash] = Counter()

    @rule(ids=st.lists(few_tokens, max_size=12), adapter=adapters)
    def begin(self, ids: list[int], adapter: Adapter | None) -> None:
        sequence = Replying(self.cache, ids, adapter)
        if admit(self.cache, sequence) is not None:
            self.running.append(sequence)

    @rule(number=st.integers(0, 20), count=st.integers(0, 4))
    def append(self, number: int, count: int) -> None:
        if self.running:
            self.running[number % len(self.running)].append(self.cache, [1] * count)

    @rule(number=st.integers(0, 20))
    def finish(self, number: int) -> None:
        if self.running:
            self.cache.release(self.running.pop(number % len(self.running)))

    @rule(caching=st.booleans())
    def switch(self, caching: bool) -> None:
        self.cache.caching = caching

    @rule()
    def discard(self) -> None:
        self.cache.discard()

    @invariant()
    def the_books_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        check(self.cache)
        for event in self.cache.take_events():
            match event:
                case BlockStored():
                    self.announced.update(event.block_hashes)
                case BlockRemoved():
                    self.announced.subtract(event.block_hashes)
                case AllBlocksCleared():
                    self.announced.clear()
        assert all(count >= 0 for count in self.announced.values())
        assert self.announced.total() <= self.cache.capacity

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for sequence in self.running:
                self.cache.release(sequence)
            assert self.cache.free == self.cache.capacity


TestCompared = Compared.TestCase
TestCompared.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAdapters = Adapters.TestCase
TestAdapters.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
