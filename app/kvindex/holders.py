"""Who holds blocks, as bits: a set of holders is one integer, and sets meet in one instruction."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct


class Source(Struct, frozen=True, gc=False):
    """One engine: a data parallel `rank` of a pod, and the base model that it serves."""

    pod: str
    model: str = ""
    rank: int = 0


class Holder(Struct, frozen=True, gc=False):
    """One KV cache group of an engine. Blocks of groups that are not `scored` are known but count nothing."""

    source: Source
    group: int = 0
    scored: bool = True


class TooManyHolders(Exception):
    """There is no bit left for another holder."""


class Holders:
    """Gives every holder a bit, and knows the bits of each pod, model and adapter.

    Bits of holders that are gone are given again, so masks stay as short as the fleet is large; `most` is how
    many holders there may be at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: list[Holder | None] = []
        self._free: list[int] = []
        self._groups: dict[Source, dict[int, int]] = {}
        self._pods: dict[str, int] = {}
        self._models: dict[str, int] = {}
        self._adapters: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._holders) - len(self._free)

    @property
    def one_group_each(self) -> bool:
        """Whether no source has more than one group."""
        return len(self._groups) == len(self)

    def __iter__(self) -> Iterator[Holder]:
        return (holder for holder in self._holders if holder is not None)

    def __getitem__(self, number: int) -> Holder | None:
        """Who has bit `number`, if anybody."""
        return self._holders[number] if number < len(self._holders) else None

    def number(self, source: Source, group: int, scored: bool | None = None) -> int:
        """The bit of a group, given now if it has none. `scored` is None where the caller does not know.

        TooManyHolders when there is none to give.
        """
        known = self._groups.get(source, {}).get(group)
        if known is None:
            number = self._next()
            self._place(number, Holder(source, group, group == 0 if scored is None else scored))
            return number
        holder = self._holders[known]
        if holder is not None and scored is not None and holder.scored != scored:
            self.assign(known, Holder(source, group, scored))
        return known

    def find(self, source: Source, group: int) -> int | None:
        """The bit of a group that has one."""
        return self._groups.get(source, {}).get(group)

    def groups(self, source: Source) -> dict[int, int]:
        """Group -> bit of a source."""
        return self._groups.get(source, {})

    def sources(self, pod: str) -> list[Source]:
        """The sources of a pod."""
        return list({holder.source for _, holder in self.of(self._pods.get(pod, 0))})

    def assign(self, number: int, holder: Holder) -> None:
        """Say who has bit `number`, as somebody else has decided."""
        self.release(number)
        for unused in range(len(self._holders), number + 1):
            self._holders.append(None)
            self._free.append(unused)
        self._free.remove(number)
        heapq.heapify(self._free)
        self._place(number, holder)

    def release(self, number: int) -> None:
        """Nobody has bit `number` any more."""
        holder = self[number]
        if holder is None:
            return
        self._holders[number] = None
        heapq.heappush(self._free, number)
        groups = self._groups[holder.source]
        del groups[holder.group]
        if not groups:
            del self._groups[holder.source]
        _drop(self._pods, holder.source.pod, number)
        _drop(self._models, holder.source.model, number)
        for adapter in list(self._adapters):
            _drop(self._adapters, adapter, number)

    def serves(self, adapter: str, number: int) -> None:
        """A holder has blocks of this adapter."""
        self._adapters[adapter] = self._adapters.get(adapter, 0) | 1 << number

    def mask(self, model: str, pods: Collection[str] = ()) -> int:
        """The scored holders that serve a model, or else an adapter of that name; without pods, of all."""
        serving = self._models.get(model) or self._adapters.get(model, 0)
        wanted = 0
        for pod in pods:
            wanted |= self._pods.get(pod, 0)
        return serving & wanted if pods else serving

    def of(self, mask: int) -> list[tuple[int, Holder]]:
        """The holders of a mask with their bits, lowest first."""
        return self.among(bits(mask))

    def among(self, numbers: Iterable[int]) -> list[tuple[int, Holder]]:
        """The bits that are somebody's, and whose."""
        holders = self._holders
        return [(number, holder) for number in numbers if (holder := holders[number]) is not None]

    def _next(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        if len(self._holders) >= self._most:
            raise TooManyHolders(f"there are {self._most} holders already")
        self._holders.append(None)
        return len(self._holders) - 1

    def _place(self, number: int, holder: Holder) -> None:
        source, bit = holder.source, 1 << number
        self._holders[number] = holder
        self._groups.setdefault(source, {})[holder.group] = number
        self._pods[source.pod] = self._pods.get(source.pod, 0) | bit
        if holder.scored:
            self._models[source.model] = self._models.get(source.model, 0) | bit


def _drop(masks: dict[str, int], name: str, number: int) -> None:
    """Take a bit out of the mask of `name`, and the mask away when it is empty."""
    left = masks.get(name, 0) & ~(1 << number)
    if left:
        masks[name] = left
    else:
        masks.pop(name, None)


def bits(mask: int) -> list[int]:
    """The numbers of the bits that are set, lowest first."""
    digits = bin(mask)[:1:-1]
    found, at = [], digits.find("1")
    while at >= 0:
        found.append(at)
        at = digits.find("1", at + 1)
    return found
