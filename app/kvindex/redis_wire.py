"""How Redis is reached, operations as its scripts read them, and what it answers.

Apart from the backend, whose client takes long to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from app.kvindex.backend import MOST_HOLDERS, Clear, Offload, Operation, Owned, Remove, Store
from app.kvindex.holders import Copies, Source

PART_BLOCKS = 2_000
"""Blocks after which a batch goes on in another script: others have their turn in between."""


class RedisSettings(Struct, frozen=True, kw_only=True):
    """`url` is of redis, rediss, valkey, valkeys or unix, or only host and port.

    All keys begin with `namespace`. A block that nobody has stored for `ttl_s` seconds is forgotten, with 0
    never; `size` then tells what was stored and not removed. `timeout_s` is for one call.
    """

    url: str = "redis://127.0.0.1:6379"
    namespace: str = "kvindex"
    ttl_s: int = 0
    timeout_s: float = 1.0
    most_holders: int = MOST_HOLDERS
    count_repeats: bool = True


def name_of(source: Source) -> str:
    return msgspec.json.encode((source.pod, source.model, source.rank)).decode()


def written(operation: Operation, source: Source) -> dict[str, object]:
    """An operation as the script reads it."""
    match operation:
        case Store():
            fields: dict[str, object] = {
                "kind": "s",
                "group": operation.group,
                "tier": operation.tier,
                "engine": packed(operation.engine),
                "owned": list(map(packed_owned, operation.owned)),
                "keys": packed(operation.keys),
                "remapped": [(digits(key), packed_owned(owned)) for key, owned in operation.remapped],
                "default": described(source, operation.group, operation.group == 0),
            }
            if operation.scored is not None:
                fields["described"] = described(source, operation.group, operation.scored)
            if operation.adapter is not None:
                fields["adapter"] = operation.adapter
            return fields
        case Offload() | Remove():
            return {
                "kind": "o" if isinstance(operation, Offload) else "r",
                "group": operation.group,
                "tier": operation.tier,
                "engine": packed(operation.engine),
            }
    return {"kind": "c"}


def described(source: Source, group: int, scored: bool) -> str:
    return msgspec.json.encode((source.pod, source.model, source.rank, group, scored)).decode()


def digits(key: int) -> str:
    """A block key as the scripts have it."""
    return f"{key:016x}"


def packed(keys: Sequence[int]) -> str:
    return "".join(map(digits, keys))


def packed_owned(owned: Owned) -> str:
    return digits(owned) if isinstance(owned, int) else packed(owned)


def unpacked(value: bytes) -> tuple[int, ...]:
    return tuple(int(value[start : start + 16], 16) for start in range(0, len(value), 16))


def parts(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """The operations in parts of about `PART_BLOCKS` blocks, at least one part."""
    part: list[Operation] = []
    blocks = 0
    for operation in operations:
        part.append(operation)
        blocks += 1 if isinstance(operation, Clear) else len(operation.engine)
        if blocks >= PART_BLOCKS:
            yield part
            part, blocks = [], 0
    yield part


def copies_of(rows: Sequence[Sequence[bytes | None]]) -> list[Copies]:
    """Masks from bitmaps, up to the first block that nobody has. Equal neighbours share one tuple."""
    found: list[Copies] = []
    before: tuple[bytes | None, ...] = ()
    copies: Copies = ()
    for bitmaps in zip(*rows, strict=True):
        if bitmaps != before:
            before = bitmaps
            masks = [int.from_bytes(bitmap or b"", "little") for bitmap in bitmaps]
            while masks and not masks[-1]:
                masks.pop()
            copies = tuple(masks)
        if not copies:
            break
        found.append(copies)
    return found
