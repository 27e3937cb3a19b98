"""Random requests, clients that leave, and resets: every request ends, and no block is lost."""

from random import Random

import pytest

from tests.extensions.kv_offload.engines import TieredEngine, prompt_of

REQUESTS = 150


@pytest.mark.parametrize("steps", [False, True], ids=["requests", "steps"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "options",
    [
        {"chunks": 25},
        {"chunks": 12, "policy": "arc", "disk_chunks": 30, "disk_bandwidth": 5e6},
        {"chunks": 9, "blocks_per_chunk": 2, "is_prompt_only": False, "has_full_events": True},
        {"chunks": 30, "store_threshold": 2, "has_prefix_cache": False},
    ],
    ids=["lru", "disk", "chunks", "threshold"],
)
def test_all_random_requests_complete_and_release_all_blocks(
    options: dict[str, object], seed: int, steps: bool
) -> None:
    random = Random(seed)
    tiered = TieredEngine(24, steps=steps, **options)
    handles = []
    aborted = set()
    for number in range(REQUESTS):
        prompt = prompt_of(random.randrange(12), random.randint(1, 8), random.randint(0, 3))
        handles.append(tiered.submit(f"{number}", prompt, random.randint(1, 40)))
        tiered.clock.advance(random.choice([0.0, 0.01, 0.1, 0.6]))
        if random.random() < 0.2:
            victim = random.randrange(len(handles))
            aborted.add(f"{victim}")
            handles[victim].abort()
        if random.random() < 0.03:
            tiered.cache.reset(under_requests=True, external=random.random() < 0.5)

    tiered.clock.advance(600)

    ended = {name for name in tiered.outputs if tiered.has_ended(name)}
    assert ended | aborted == set(tiered.outputs)
    assert tiered.used_blocks == 0
    assert not tiered.cache.running
    assert tiered.engine.running == tiered.engine.waiting == 0
    assert tiered.cache.tiers.cpu.reading == tiered.cache.tiers.cpu.writing == 0
    assert tiered.cache.tiers.next_s == float("inf")
