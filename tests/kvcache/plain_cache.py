"""vLLM's rules told in the plainest way: one list of free blocks, loops over all blocks, no hashing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Prefix = tuple[Any, ...]


@dataclass(eq=False)
class Room:
    """A block: how many use it, and the tokens from the start up to its end that it is cached for."""

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
            found = [room for room in self.cached if room.prefix == prefix]
            if not found:
                break
            hits.append(found[0])
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
        first, last = [], []
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
        taken, self.free = self.free[:count], self.free[count:]
        for room in taken:
            if room.prefix:
                self.events.append(("removed", room.prefix))
                self.cached.remove(room)
            room.prefix, room.references = None, 1
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
