"""Copies of a block: the set of holders in each tier, as bit masks.

A mask is a set of holders as one integer, for fast set operations: bit n stands for holder
number n. Functions of copies return new copies and change none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Copies: TypeAlias = tuple[int, ...]
"""Masks of a block's holders, one for each tier, in the order of the backend's tiers."""


def set_bits(mask: int) -> list[int]:
    """Returns the numbers of the set bits, lowest first."""
    digits = bin(mask)[::-1]  # ends in "b0", which has no "1"
    numbers = []
    number = digits.find("1")
    while number >= 0:
        numbers.append(number)
        number = digits.find("1", number + 1)
    return numbers


def union(masks: Iterable[int]) -> int:
    """Returns the holders that are in any of the masks."""
    result = 0
    for mask in masks:
        result |= mask
    return result


def count_copies(copies: Copies) -> int:
    """Counts the holders of a block, once for each tier."""
    if len(copies) == 1:
        return copies[0].bit_count()
    return sum(map(int.bit_count, copies))


def with_holder(copies: Copies, tier: int, bit: int) -> Copies:
    """Returns the copies with a holder added; the same object if the holder is present."""
    if tier < len(copies):
        if copies[tier] & bit:
            return copies
        return (*copies[:tier], copies[tier] | bit, *copies[tier + 1 :])
    return (*copies, *(0,) * (tier - len(copies)), bit)


def without_holder(copies: Copies, tier: int | None, bit: int) -> Copies:
    """Returns the copies without a holder in one tier, or in all tiers for None.

    Returns the same object if the holder is absent.
    """
    masks = list(copies)
    if tier is None:
        masks = [mask & ~bit for mask in copies]
    elif tier < len(copies):
        masks[tier] &= ~bit
    if masks == list(copies):
        return copies
    while masks and not masks[-1]:
        masks.pop()
    return tuple(masks)
