"""The vocabulary of sleep and pause."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypeAlias

from msgspec import Struct

DEEPEST_SLEEP: Final = 2
MEMORY: Final = frozenset(("weights", "kv_cache"))
PauseMode: TypeAlias = Literal["abort", "wait", "keep"]


class PauseRules(Struct, frozen=True, kw_only=True):
    """Rules of a pause that differ between versions of vLLM; the defaults are the newest."""

    refuses_requests: bool = True
    """Only a pause that keeps running requests lets new ones wait."""

    def refuses(self, mode: PauseMode) -> bool:
        """Returns whether new requests fail during a pause of this mode."""
        return self.refuses_requests and mode != "keep"


def woken_by(tags: Collection[str] | None, asleep: Collection[str]) -> set[str]:
    """Returns the memory that `wake_up` restores.

    The result is all memory that `tags` name, or nothing if one tag is not asleep.
    """
    woken = set(asleep)
    if tags is not None:
        woken = set(tags) - {"scheduling"}
    return woken if woken <= set(asleep) else set()
