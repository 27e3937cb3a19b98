"""The vocabulary of sleep and pause."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypeAlias

DEEPEST_SLEEP: Final = 2
MEMORY: Final = frozenset(("weights", "kv_cache"))
PauseMode: TypeAlias = Literal["abort", "wait", "keep"]


def woken_by(tags: Collection[str] | None, asleep: Collection[str]) -> set[str]:
    """Returns the memory that `wake_up` restores.

    The result is all memory that `tags` name, or nothing if one tag is not asleep.
    """
    woken = set(asleep)
    if tags is not None:
        woken = set(tags) - {"scheduling"}
    return woken if woken <= set(asleep) else set()
