"""Blocks that engines' events store, before they are blocks of the index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from app.core.engine.kvcache.events import BlockStored
from app.extensions.kv_index.backend import CoveredKeys

MAX_BLOCK_TOKENS = 1 << 14
"""Maximum size of an engine's block, in tokens."""

KnownBlocks: TypeAlias = dict[tuple[int, int], CoveredKeys | None]
"""(group, engine key) -> request keys of a block; None for an unknown block."""


class RejectedEventError(Exception):
    """Raised for an unusable event, or for events that cannot be one operation.

    The message of an unusable event is the reason in `IndexMetrics.skipped_events`.
    """


class NewBlocks(Struct, gc=False):
    """Stores that differ only in their blocks.

    `engine_keys` has the keys of all events in a row, `parents` one engine key for each event.
    """

    events: Sequence[BlockStored]
    engine_keys: Sequence[int]
    parents: Sequence[int | None]
    group: int
    tier: str
    adapter: str | None
