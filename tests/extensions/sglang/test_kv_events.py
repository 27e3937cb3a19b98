"""KV events in SGLang's form."""

from typing import Any

import msgspec
import pytest

from app.core.engine.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from app.extensions.sglang.kv_events import encode_batch, signed

HIGH = (1 << 64) - 2


def encoded(*events: Any) -> list[Any]:
    batch: list[Any] = msgspec.msgpack.decode(encode_batch(EventBatch(1.5, list(events), 3)))
    assert (batch[0], batch[2], len(batch)) == (1.5, 3, 3)
    event_maps: list[Any] = batch[1]
    return event_maps


def test_stored_block_event_is_a_map_with_signed_hashes() -> None:
    event = BlockStored(
        block_hashes=[1, HIGH],
        parent_block_hash=HIGH,
        token_ids=[4, 5],
        block_size=1,
        lora_id=7,
        lora_name="adapter",
        extra_keys=[None, ["adapter"]],
        group_idx=0,
    )
    [stored_map] = encoded(event)
    assert stored_map == {
        "type": "BlockStored",
        "block_hashes": [1, -2],
        "parent_block_hash": -2,
        "token_ids": [4, 5],
        "block_size": 1,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": "adapter",
    }
    [first] = encoded(BlockStored([1], None, [4], 1, None))
    assert first["parent_block_hash"] is None and "lora_name" not in first


def test_cpu_medium_of_removed_blocks_is_published_as_cpu_pinned() -> None:
    event_maps = encoded(BlockRemoved([HIGH], medium="CPU"), AllBlocksCleared())
    removed = {"type": "BlockRemoved", "block_hashes": [-2], "medium": "CPU_PINNED"}
    assert event_maps == [removed, {"type": "AllBlocksCleared"}]


@pytest.mark.parametrize(
    ("block_hash", "number"),
    [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (bytes(24) + b"\xff" * 8, -1)],
)
def test_sglang_events_publish_block_hashes_as_signed_low_64_bits(
    block_hash: int | bytes, number: int
) -> None:
    assert signed(block_hash) == number
