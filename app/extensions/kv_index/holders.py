"""Holders of blocks: KV cache groups of engines, each with a number that is its bit in masks."""

from __future__ import annotations

import heapq
from collections.abc import Collection, MutableMapping

from cachetools import LRUCache
from msgspec import Struct

from app.extensions.kv_index.copies import set_bits, union

MAX_HOLDERS = 65_536
"""Maximum number of KV cache groups of all engines at once; each is a bit of every mask."""
MAX_ADAPTERS = 4096
"""Maximum number of adapters whose holders are remembered; the least recently used is dropped."""


class IndexedEngine(Struct, frozen=True, gc=False):
    """An engine: a data-parallel `rank` of a pod, with its base model."""

    pod: str
    model: str
    rank: int


class Window(Struct, frozen=True, gc=False):
    """Blocks that a hit reads in a group that does not need every block.

    The hit reads `blocks` blocks of the index before its end, or all from the start. Its end is a
    multiple of `stride`, the blocks of the index in a block of the engine.
    """

    blocks: int
    stride: int


class EngineGroup(Struct, frozen=True, gc=False):
    """A KV cache group of an engine.

    Blocks of groups that are not `scored` do not count in scores. With a `window`, they limit the
    score.
    """

    source: IndexedEngine
    group: int
    scored: bool
    window: Window | None = None


class HolderLimitError(Exception):
    """Raised when no number is free for a new holder."""


class Holders:
    """Assigns a number to every holder, and keeps masks of each pod, model and adapter.

    Numbers of released holders are assigned again, so the length of masks follows the size of the
    fleet. `max_holders` limits the number of holders at once.
    """

    def __init__(self, max_holders: int) -> None:
        self._max_holders = max_holders
        self._holders: list[EngineGroup | None] = []
        self._free: list[int] = []
        self._groups: dict[IndexedEngine, dict[int, int]] = {}
        self._pods: dict[str, int] = {}
        self._models: dict[str, int] = {}
        self._scored = 0
        self._adapters: LRUCache[str, int] = LRUCache(MAX_ADAPTERS)

    def __len__(self) -> int:
        return len(self._holders) - len(self._free)

    def __getitem__(self, number: int) -> EngineGroup | None:
        """Returns a holder by its number; None for a free number."""
        return self._holders[number] if number < len(self._holders) else None

    @property
    def has_single_groups(self) -> bool:
        """True if every engine has a single KV cache group."""
        return len(self._groups) == len(self)

    @property
    def pods(self) -> Collection[str]:
        """Names of the pods with holders."""
        return self._pods.keys()

    def register(
        self,
        source: IndexedEngine,
        group: int,
        scored: bool | None = None,
        window: Window | None = None,
    ) -> int:
        """Returns the number of an engine's group, and assigns one to a new group.

        `scored` and `window` replace the group's properties; with None for `scored`, a new group is
        scored if it is group 0.

        Raises:
            HolderLimitError: no number is free.
        """
        number = self._groups.get(source, {}).get(group)
        if number is None:
            if scored is None:
                scored = group == 0
            return self._register(EngineGroup(source, group, scored, window))
        holder = self._holders[number]
        if holder is not None and scored is not None:
            described = EngineGroup(source, group, scored, window)
            if holder != described:
                self.assign(number, described)
        return number

    def groups(self, source: IndexedEngine) -> dict[int, int]:
        """Returns the numbers of an engine's groups, by group."""
        return self._groups.get(source, {})

    def engines(self, pod: str) -> list[IndexedEngine]:
        """Returns the engines of a pod."""
        return list({holder.source for _, holder in self.members(self._pods.get(pod, 0))})

    def assign(self, number: int, holder: EngineGroup) -> None:
        """Assigns `number`, chosen by a shared backend, to a holder."""
        self.release(number)
        for unused in range(len(self._holders), number + 1):
            self._holders.append(None)
            self._free.append(unused)
        self._free.remove(number)
        heapq.heapify(self._free)
        self._place(number, holder)

    def release(self, number: int) -> None:
        """Removes a holder and frees its number."""
        holder = self[number]
        if holder is None:
            return
        source = holder.source
        self._holders[number] = None
        self._scored &= ~(1 << number)
        heapq.heappush(self._free, number)
        groups = self._groups[source]
        del groups[holder.group]
        if not groups:
            del self._groups[source]
        _remove_bit(self._pods, source.pod, number)
        _remove_bit(self._models, source.model, number)
        for adapter, mask in list(self._adapters.items()):
            if mask >> number & 1:
                _remove_bit(self._adapters, adapter, number)

    def add_adapter(self, adapter: str, number: int) -> None:
        """Records that a holder has blocks of an adapter."""
        self._adapters[adapter] = self._adapters.get(adapter, 0) | 1 << number

    def candidates(self, model: str, pods: Collection[str] = ()) -> int:
        """Returns the mask of the scored holders of a model, or of an adapter of this name.

        `pods` limits the choice; () means all pods.
        """
        serving = self._models.get(model) or self._adapters.get(model, 0) & self._scored
        if not pods:
            return serving
        return serving & union([self._pods.get(pod, 0) for pod in pods])

    def snapshot(self) -> list[EngineGroup | None]:
        """Returns a copy of the holders by number; None for a free number."""
        return self._holders.copy()

    def members(self, mask: int) -> list[tuple[int, EngineGroup]]:
        """Returns the numbers and holders in a mask, lowest number first."""
        pairs = []
        for number in set_bits(mask):
            holder = self._holders[number]
            if holder is not None:
                pairs.append((number, holder))
        return pairs

    def _register(self, holder: EngineGroup) -> int:
        number = self._free[0] if self._free else len(self._holders)
        if number >= self._max_holders:
            raise HolderLimitError(f"the limit of {self._max_holders} holders has been reached")
        if self._free:
            heapq.heappop(self._free)
        else:
            self._holders.append(None)
        self._place(number, holder)
        return number

    def _place(self, number: int, holder: EngineGroup) -> None:
        source = holder.source
        self._holders[number] = holder
        self._groups.setdefault(source, {})[holder.group] = number
        self._pods[source.pod] = self._pods.get(source.pod, 0) | 1 << number
        if holder.scored:
            self._scored |= 1 << number
            self._models[source.model] = self._models.get(source.model, 0) | 1 << number


def _remove_bit(masks: MutableMapping[str, int], name: str, number: int) -> None:
    mask = masks.get(name, 0) & ~(1 << number)
    if mask:
        masks[name] = mask
    else:
        masks.pop(name, None)
