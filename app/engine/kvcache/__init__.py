"""KV cache of the simulated engine: block hashes, the block pool, and published events.

Independent of requests and HTTP.
"""
