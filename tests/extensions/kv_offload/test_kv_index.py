"""Scores of pods whose blocks are in tiers."""

from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend
from tests.extensions.kv_index.engines import ingest
from tests.extensions.kv_offload.engines import BLOCK_SIZE, TieredEngine, prompt_of


def test_host_tier_block_scores_less_than_a_device_block() -> None:
    tiered = TieredEngine(12)
    index = Index(MemoryBackend(), block_size=BLOCK_SIZE)
    prompt = prompt_of(1)
    tiered.complete("first", prompt)
    ingest(index, "a", *tiered.events)
    before = index.score("m", prompt)
    tiered.events.clear()

    tiered.complete("other", prompt_of(2, 10))
    ingest(index, "a", *tiered.events)
    after = index.score("m", prompt)

    assert [score.score for score in before] == [4 * 1.0]
    assert [score.score for score in after] == [4 * 0.8]
    assert not index.metrics.skipped_events
