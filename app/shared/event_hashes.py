"""Block hashes of KV events as numbers of 64 bits, which other protocols and the index take."""

from app.core.engine.kvcache.hashing import low64

LOW_64 = (1 << 64) - 1


def unsigned64(block_hash: int | bytes) -> int:
    """Returns the hash of an event, which may be a negative number or bytes, in 64 bits."""
    if isinstance(block_hash, int):
        return block_hash & LOW_64
    return low64(block_hash)


def signed64(block_hash: int | bytes) -> int:
    """Returns the hash of an event as a signed number of 64 bits, for protocols without others."""
    number = unsigned64(block_hash)
    if number >= 1 << 63:
        number -= 1 << 64
    return number
