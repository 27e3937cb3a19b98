"""What the blocks that an engine has stored are called in the index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from app.kvcache.events import BlockStored
from app.kvindex.alignment import MOST_TAILS, Tail, Tails, align
from app.kvindex.backend import UNALIGNED, Owned, Store
from app.kvindex.features import published
from app.kvindex.holders import Source
from app.kvindex.keys import RequestKeys
from app.kvindex.runs import Refused, Run

SCORED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups of which a hit needs every block from the start of the prompt on."""
MOST_MODELS, MOST_SIZES = 1024, 8
"""Models whose block sizes are remembered, and how many for each."""

Known: TypeAlias = Callable[[int], Owned | None]
"""The request keys of an engine's block, None where it is not known."""


class Stores:
    """Makes operations of runs. Remembers the block sizes of engines, and the tails of their prompts."""

    def __init__(self, request_keys: RequestKeys, most_tails: int = MOST_TAILS) -> None:
        self._request_keys = request_keys
        self._size = request_keys.block_size
        self._tails = Tails(most_tails)
        self.block_sizes: dict[str, set[int]] = {}
        """Model -> sizes of the blocks of its engines."""

    def operation(self, source: Source, run: Run, known: Known) -> Store:
        """The operation of a run. Refused when its event cannot be used, or several not as one."""
        try:
            return (self._one if len(run.events) == 1 else self._several)(source, run, known)
        except ValueError:
            raise Refused("bad_token_ids") from None
        except KeyError:
            raise Refused("unknown_parent") from None

    def _one(self, source: Source, run: Run, known: Known) -> Store:
        event, engine = run.events[0], run.engine
        before = self._before(source, run, run.parents[0], known)
        _check(event)
        features = published(event.extra_keys, event.lora_name)
        self._note_size(source.model, run)
        if event.block_size == self._size and isinstance(before, int):
            keys = self._request_keys.keys(before, event.token_ids, features)
            return _store(run, keys, keys)
        tail = Tail(before) if isinstance(before, int) else before
        aligned = align(self._request_keys, tail, engine, event.block_size, event.token_ids, features)
        self._tails.put((source, run.group), aligned.tails)
        return _store(run, aligned.owned, aligned.keys, aligned.remapped)

    def _several(self, source: Source, run: Run, known: Known) -> Store:
        place = dict(zip(run.engine, range(len(run.engine)), strict=True))
        root = self._request_keys.root(run.adapter or source.model)
        keys: list[int] = []
        for event, parent in zip(run.events, run.parents, strict=True):
            before: int | Tail = root
            if parent is not None:
                at = place.get(parent, len(keys))
                before = keys[at] if at < len(keys) else self._before(source, run, parent, known)
            if isinstance(before, Tail):
                raise Refused
            _check(event)
            keys += self._request_keys.keys(before, event.token_ids)
        # A block that is stored again is a further copy of it, which has to be seen as such.
        if len(place) < len(keys) or len(set(keys)) < len(keys):
            raise Refused
        self._note_size(source.model, run)
        return _store(run, keys, keys)

    def _before(self, source: Source, run: Run, parent: int | None, known: Known) -> int | Tail:
        """What the blocks of an event follow: a request key, or a tail."""
        if parent is None:
            return self._request_keys.root(run.adapter or source.model)
        tail = self._tails.get((source, run.group), parent) if len(self._tails) else None
        if tail is not None:
            return tail
        owned = known(parent)
        if owned is None:
            raise Refused("unknown_parent")
        last = owned if isinstance(owned, int) else owned[-1] if owned else UNALIGNED
        if last == UNALIGNED:
            raise Refused("unaligned_parent")
        return last

    def _note_size(self, model: str, run: Run) -> None:
        if len(run.engine) == len(run.events):
            return  # a single block may be the partial one at the end of a hybrid model's prompt
        sizes = self.block_sizes.get(model)
        if sizes is None:
            if len(self.block_sizes) >= MOST_MODELS:
                return
            sizes = self.block_sizes[model] = set()
        if len(sizes) < MOST_SIZES:
            sizes.add(run.events[0].block_size)


def _check(event: BlockStored) -> None:
    """Refused for numbers of tokens and of extra keys that do not fit the number of blocks."""
    blocks = len(event.block_hashes)
    if event.block_size < 1:
        raise Refused("bad_block_size")
    if len(event.token_ids) != blocks * event.block_size:
        raise Refused("token_count")
    if event.extra_keys and len(event.extra_keys) != blocks:
        raise Refused("extra_keys_count")


def _store(
    run: Run,
    owned: Sequence[Owned],
    keys: Sequence[int],
    remapped: Sequence[tuple[int, tuple[int, ...]]] = (),
) -> Store:
    kind = run.events[0].kv_cache_spec_kind
    scored = None if kind is None else kind in SCORED_KINDS
    return Store(run.group, run.tier, run.engine, owned, keys, remapped, scored, run.adapter)
