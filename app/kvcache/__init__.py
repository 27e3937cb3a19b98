"""The KV cache of the simulated engine: block hashes, the block pool, and the events it publishes.

Knows neither requests nor HTTP.
"""
