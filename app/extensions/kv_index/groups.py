"""The KV cache groups of engines, as far as their events describe them.

A hit in a group of layers with a window reads the last blocks only. Engines store few blocks of
such a group, and their events do not show which tokens these have. They are found by their names,
which equal blocks share in all groups.
"""

from __future__ import annotations

from itertools import chain

from cachetools import LRUCache

from app.core.engine.kvcache.events import BlockStored
from app.extensions.kv_index.backend import Backend, CoveredKeys, Store, keys_of
from app.extensions.kv_index.holders import IndexedEngine, Window
from app.extensions.kv_index.new_blocks import (
    MAX_BLOCK_TOKENS,
    KnownBlocks,
    RejectedEventError,
)

SCORED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups where a hit needs every block from the prompt's start."""
WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla", "mamba"})
"""Kinds where a hit needs the last blocks only. Engines store few of their blocks."""
UNSCORED_KINDS = frozenset({"chunked_local_attention", "encoder_only_attention", "cross_attention"})
"""Kinds whose blocks do not show which prompts hit."""
UNKNOWN_KIND = "unknown"
"""vLLM's kind of a group that has none of its kinds: the same as no kind."""
MAX_WINDOW_TOKENS = 1 << 24
"""Maximum sliding window, in tokens."""
MAX_ENGINES = 65_536
"""Maximum number of engines whose groups are remembered."""


class EngineGroups:
    """Describes the groups of stored blocks, and pairs blocks of groups with windows."""

    def __init__(self, backend: Backend, block_size: int) -> None:
        """`block_size` is that of the index, in tokens."""
        self._backend = backend
        self._block_size = block_size
        self._main_groups: LRUCache[IndexedEngine, int] = LRUCache(MAX_ENGINES)
        """A group with all blocks of each engine that has groups with windows."""

    def describe(
        self, store: Store, source: IndexedEngine, *, event: BlockStored, kind: str
    ) -> None:
        """Notes the kind of an operation's group, as the event of its blocks describes it.

        Raises:
            RejectedEventError: the event does not describe its KV cache group.
        """
        if kind == UNKNOWN_KIND:
            return
        # A description replaces the group's, so a wrong one would end the scores of all its blocks.
        if kind in WINDOW_KINDS:
            store.window = self._window(event, kind)
        elif kind not in SCORED_KINDS | UNSCORED_KINDS:
            raise RejectedEventError("bad_kv_cache_spec_kind")
        store.scored = kind in SCORED_KINDS
        if store.scored:
            self._main_groups[source] = store.group

    def pair(self, source: IndexedEngine, store: Store, unapplied: KnownBlocks) -> int:
        """Finds the blocks of a group with a window; returns the number of unknown blocks.

        The engine names equal blocks alike in all groups, and a group with all blocks has them,
        too. The event's tokens do not show which blocks it stores: it may leave blocks out.
        """
        main_group = self._main_groups.get(source)
        if main_group is None:
            unknown = len(store.engine_keys)
            store.engine_keys = ()
            return unknown
        entries: dict[int, CoveredKeys] = {}
        wanted: list[tuple[int, int]] = []
        for key in store.engine_keys:
            covered = unapplied.get((main_group, key))
            if covered is None:
                wanted.append((main_group, key))
            else:
                entries[key] = covered
        if wanted:
            stored = self._backend.covered_keys(source, wanted)
            for (_, key), covered in zip(wanted, stored, strict=True):
                if covered is not None:
                    entries[key] = covered
        names = [key for key in store.engine_keys if key in entries]
        unknown = len(store.engine_keys) - len(names)
        store.engine_keys = names
        store.covered = [entries[key] for key in names]
        blocks = chain.from_iterable(map(keys_of, store.covered))
        store.request_keys = list(dict.fromkeys(blocks))
        return unknown

    def _window(self, event: BlockStored, kind: str) -> Window:
        """Returns the blocks that a hit reads in the event's group."""
        size = event.block_size
        if not 0 < size <= MAX_BLOCK_TOKENS:
            raise RejectedEventError("bad_block_size")
        tokens = size
        window = event.kv_cache_spec_sliding_window
        if window is None and kind != "mamba" or window is not None and window < 1:
            raise RejectedEventError("bad_kv_cache_spec_sliding_window")
        if window is not None:
            window = min(max(window, 2), MAX_WINDOW_TOKENS)
            tokens = -(-(window - 1) // size) * size
        return Window(-(-tokens // self._block_size), max(1, size // self._block_size))
