"""Prompts for the KV cache: token ids, extra keys, and block hashes.

Extra keys are the adapter, the client's salt, and images. Hashes cover tagged keys, as in vLLM 0.31 and
later; events carry bare ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

from msgspec import Struct

from app.engine.kvcache.hashing import Extra

Key: TypeAlias = tuple[Hashable, object]
"""An extra key: the hashed form, and the form in events."""


class Adapter(Struct, gc=False, frozen=True):
    """A LoRA adapter: its name, its source path, and its number in the engine."""

    name: str
    path: str = ""
    id: int = 0


class Placeholder(Struct, gc=False, frozen=True):
    """Prompt tokens that stand for an image or other media: `length` tokens from `offset` on."""

    identifier: str
    offset: int
    length: int

    def blocks(self, block_size: int) -> range:
        return range(self.offset // block_size, -(-(self.offset + self.length) // block_size))


class ExtraKeys:
    """Extra keys of a sequence's blocks of `block_size` tokens."""

    def __init__(
        self,
        block_size: int,
        adapter: Adapter | None = None,
        salt: str | None = None,
        placeholders: Sequence[Placeholder] = (),
    ) -> None:
        every: list[Key] = []
        if adapter is not None:
            every.append((("lora", adapter.name, adapter.path), adapter.name))
        own: dict[int, list[Key]] = {}
        for item in sorted(placeholders, key=lambda item: item.offset):
            for block in item.blocks(block_size):
                offset = item.offset - block * block_size
                keys: Key = ("mm", item.identifier, offset), [item.identifier, offset]
                own.setdefault(block, []).append(keys)
        if salt:
            own.setdefault(0, []).append((("cache_salt", salt), salt))
        self._every = _split(every)
        self._own = {block: _split(every + inner) for block, inner in own.items()}

    def hashed(self, first: int, last: int) -> list[Extra] | None:
        """Returns the hashed extra keys of blocks `first` to `last` (exclusive); None if all have none."""
        if not self._own and self._every[0] is None:
            return None
        return [self._own.get(block, self._every)[0] for block in range(first, last)]

    def published(self, first: int, last: int) -> list[list[object] | None]:
        if not self._own:
            return [self._every[1]] * (last - first)
        return [self._own.get(block, self._every)[1] for block in range(first, last)]


def _split(keys: list[Key]) -> tuple[Extra, list[object] | None]:
    if not keys:
        return None, None
    return tuple(hashed for hashed, _ in keys), [published for _, published in keys]


NO_KEYS = ExtraKeys(1)
"""For prompts without adapter, salt and media, whatever the block size."""


class Prompt(Struct, gc=False, frozen=True):
    """A prompt; without `hashes` nothing of it is cached or found, without `reads` nothing is found."""

    token_ids: Sequence[int]
    keys: ExtraKeys
    adapter: Adapter | None
    reads: bool
    hashes: list[bytes] | None
