"""MultiConnector: an OffloadingConnector beside a NixlConnector."""

from typing import Any

import pytest

from app.core.engine.kvcache.hashing import BlockHasher
from app.extensions.kv_offload.cache import TieredCache
from app.extensions.kv_offload.options import OffloadOptions
from tests.extensions.handoff import pods
from tests.extensions.handoff.pods import BLOCK_TOKENS, Network, Pod, advance

BLOCKS = 9
PROMPT = list(range(5 * BLOCK_TOKENS + 1))
OTHER = list(range(1000, 1000 + 7 * BLOCK_TOKENS + 1))


@pytest.fixture(params=[False, True], ids=["requests", "steps"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Gives all pods caches with tiers; a block takes 0.1 s."""
    in_steps = bool(request.param)
    options = OffloadOptions(chunks=100, block_bytes=1e6, bandwidth=1e7, in_steps=in_steps)

    def make_cache(blocks: int, hasher: BlockHasher, *args: Any, **kwargs: Any) -> TieredCache:
        return TieredCache(blocks, hasher, *args, options=options, **kwargs)

    monkeypatch.setattr(pods, "KVCacheManager", make_cache)
    return in_steps


def ended(network: Network, all_pods: list[Pod], *requests: pods.Request) -> bool:
    """Lets time pass; returns whether all requests have their last token."""
    advance(network, all_pods, 10)
    return all(request.end == "length" for request in requests)


def test_prefill_pod_transfers_a_prompt_loaded_from_its_tiers(steps: bool) -> None:
    network = Network()
    prefill_pod = Pod(network, 1, steps=steps)
    decode_pod = Pod(network, 2, steps=steps)
    both = [prefill_pod, decode_pod]
    first = prefill_pod.complete(PROMPT, {})
    assert ended(network, both, first)
    other = prefill_pod.complete(OTHER, {})
    assert ended(network, both, other)

    prefill = prefill_pod.prefill(PROMPT)
    advance(network, both, 1)
    decode = decode_pod.decode(prefill)

    assert ended(network, both, prefill, decode)
    assert prefill_pod.metric("kv_offload_load_bytes_total") == 5e6
    assert decode_pod.metric("kv_offload_load_bytes_total") == 0
    assert decode_pod.metric("kv_offload_store_bytes_total") == 5e6
    assert decode.fetched_tokens == len(PROMPT)
    assert prefill_pod.is_idle
    assert decode_pod.is_idle
    for pod in both:
        assert isinstance(pod.cache, TieredCache)
        assert not pod.cache.running
