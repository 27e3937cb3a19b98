"""The masks of one block, tier by tier: who has it where. None of these functions changes one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.kvindex.backend import UNALIGNED, Copies, Owned


def count_copies(copies: Copies) -> int:
    """How many holders have a block, counted once for each tier."""
    if len(copies) == 1:
        return copies[0].bit_count()
    return sum(map(int.bit_count, copies))


def keys_of(owned: Owned) -> tuple[int, ...]:
    """The request keys of an entry."""
    if isinstance(owned, int):
        return (owned,)
    return owned[:-1] if owned and owned[-1] == UNALIGNED else owned


def with_holder(copies: Copies, tier: int, bit: int) -> Copies:
    """The masks with a holder in a tier; the same object if it is there."""
    if tier < len(copies):
        if copies[tier] & bit:
            return copies
        return (*copies[:tier], copies[tier] | bit, *copies[tier + 1 :])
    return (*copies, *(0,) * (tier - len(copies)), bit)


def without_holder(copies: Copies, tier: int | None, bit: int) -> Copies:
    """The masks without a holder, in one tier or all; the same object if it is not there."""
    if not any(mask & bit for mask in (copies if tier is None else copies[tier : tier + 1])):
        return copies
    left = [mask & ~bit if tier in (None, at) else mask for at, mask in enumerate(copies)]
    while left and not left[-1]:
        left.pop()
    return tuple(left)


def anywhere(copies: Copies) -> int:
    """Who has a block in any tier."""
    mask = 0
    for one in copies:
        mask |= one
    return mask


def spans(keys: Sequence[int], found: Sequence[Copies | None]) -> Iterator[tuple[Copies, Sequence[int]]]:
    """The keys in a row that have the same copies, with these."""
    if found.count(found[0]) == len(found):
        yield found[0] or (), keys
        return
    start = 0
    for end in range(1, len(found) + 1):
        if end == len(found) or found[end] != found[start]:
            yield found[start] or (), keys[start:end]
            start = end
