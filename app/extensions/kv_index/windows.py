"""Scores of hybrid models: prefixes that the groups with a window can continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from app.extensions.kv_index.copies import Copies, set_bits, union
from app.extensions.kv_index.holders import Window

Run: TypeAlias = tuple[int, int]
"""Positions of the first block and after the last block of adjacent blocks."""


def runs_of_holders(prompt_copies: Sequence[Copies], holders: int) -> dict[int, list[Run]]:
    """Returns the runs of a prompt's blocks that each of the `holders` has, by number.

    Neighboring blocks usually share one tuple, so the cost is per run of equal blocks.
    """
    runs: dict[int, list[Run]] = {number: [] for number in set_bits(holders)}
    starts: dict[int, int] = {}
    active = 0
    previous: Copies | None = None
    for position, copies in enumerate([*prompt_copies, ()]):
        if copies is previous:
            continue
        previous = copies
        current = union(copies) & holders
        for number in set_bits(active & ~current):
            runs[number].append((starts.pop(number), position))
        for number in set_bits(current & ~active):
            starts[number] = position
        active = current
    return runs


def longest_hit(matched: int, groups: Sequence[tuple[Window, Sequence[Run]]]) -> int:
    """Returns the longest hit up to `matched` blocks that all groups can continue."""
    while matched:
        shorter = matched
        for window, runs in groups:
            shorter = _longest_end(window, runs, shorter)
        if shorter == matched:
            break
        matched = shorter
    return matched


def _longest_end(window: Window, runs: Sequence[Run], limit: int) -> int:
    limit -= limit % window.stride
    for start, stop in reversed(runs):
        end = min(stop, limit)
        end -= end % window.stride
        if end > start and (start == 0 or end - start >= window.blocks):
            return end
    return 0
