"""KV cache of an engine: block hashes, the block pool, published events."""

PART_BLOCKS = 64
"""Maximum blocks hashed without a pause, about 0.1 ms, and remembered together."""
