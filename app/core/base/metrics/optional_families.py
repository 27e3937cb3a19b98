"""Families of an engine that only some settings or requests add, as in vLLM 0.32."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.base.metrics.spec import Spec, counter, histogram

LAYERS = 32
"""Number of layers of a usual model, Llama 3.1 8B, for simulated transfers of KV caches."""
PARTS = 2 * LAYERS
"""Keys and values of each layer; a block has a descriptor for each part."""
TOKEN_BYTES = PARTS * 8 * 128 * 2
"""Memory of a token's KV cache, in bytes: 8 heads of 128 numbers of 2 bytes in each part."""
POST_S = 1e-6
"""Time to post one descriptor, in seconds."""
BLOCK_LIFE = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800),
)
TRANSFER_TIMES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
TRANSFER_BYTES = tuple(float(2**power) for power in range(11, 34, 2))
DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)

BLOCK_TIMES = (
    histogram("kv_block_lifetime_seconds", "From filling to eviction of a block.", BLOCK_LIFE),
    histogram(
        "kv_block_idle_before_evict_seconds",
        "From the last use of a block to its eviction.",
        BLOCK_LIFE,
    ),
    histogram("kv_block_reuse_gap_seconds", "Between two uses of a block.", BLOCK_LIFE),
)
"""Families that only `kv-cache-metrics` adds."""
TRANSFERS = (
    histogram("nixl_xfer_time_seconds", "Duration of a transfer of KV caches.", TRANSFER_TIMES),
    histogram("nixl_post_time_seconds", "Time to post a transfer.", (0.001, *TRANSFER_TIMES)),
    histogram("nixl_bytes_transferred", "Bytes per transfer of KV caches.", TRANSFER_BYTES),
    histogram("nixl_num_descriptors", "Descriptors per transfer of KV caches.", DESCRIPTORS),
    counter("nixl_num_failed_transfers_total", "Transfers of KV caches that failed."),
    counter("nixl_num_failed_notifications_total", "Notifications that could not be sent."),
    counter("nixl_num_kv_expired_reqs_total", "Requests whose KV cache was not fetched in time."),
    counter("nixl_num_notifications_after_expiry_total", "Notifications that came too late."),
)
"""Families of vLLM's NIXL connector."""


def transfer_values(tokens: int, seconds: float, block_size: int) -> Iterator[tuple[str, float]]:
    """Yields the families in `TRANSFERS` and their values for a transfer that took `seconds`."""
    descriptors = PARTS * -(-tokens // block_size)
    values = (seconds, POST_S * descriptors, TOKEN_BYTES * tokens, descriptors)
    for spec, value in zip(TRANSFERS, values, strict=False):
        yield spec.name, value


def drafts(max_tokens: int) -> tuple[Spec, ...]:
    """Returns the families of speculative decoding with up to `max_tokens` tokens per draft."""
    positions = tuple(map(str, range(max_tokens)))
    by_position = "Accepted draft tokens by position."
    return (
        counter("spec_decode_num_drafts_total", "Verified drafts."),
        counter("spec_decode_num_draft_tokens_total", "Verified draft tokens."),
        counter("spec_decode_num_accepted_tokens_total", "Accepted draft tokens."),
        counter("spec_decode_num_accepted_tokens_per_pos_total", by_position, position=positions),
    )
