"""Events and batches as arrays, the layouts of engines that publish no maps."""

from typing import TypeAlias

from msgspec import Raw, Struct

from app.core.engine.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored


class ArrayStored(BlockStored, gc=False, frozen=True, array_like=True, tag="BlockStored"):
    """`BlockStored` as an array; trailing items may be missing.

    llm-d's first simulator publishes no `token_ids`.
    """

    token_ids: list[int] | None  # type: ignore[assignment]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


class ArrayRemoved(BlockRemoved, gc=False, frozen=True, array_like=True, tag="BlockRemoved"):
    """`BlockRemoved` as an array."""

    medium: str | None = None


class ArrayCleared(
    AllBlocksCleared, gc=False, frozen=True, array_like=True, tag="AllBlocksCleared"
):
    """`AllBlocksCleared` as an array."""


ArrayEvent: TypeAlias = ArrayStored | ArrayRemoved | ArrayCleared


class ArrayBatch(Struct, gc=False, array_like=True):
    """A batch of arrays, with or without a rank."""

    ts: float
    events: list[ArrayEvent]
    data_parallel_rank: int | None = None


class RawBatch(Struct, gc=False, array_like=True):
    """A batch with undecoded fields."""

    ts: Raw
    events: Raw
    data_parallel_rank: Raw = Raw(b"\xc0")
