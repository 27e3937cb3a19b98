"""KV cache of an engine: block hashes, the block pool, published events."""
