"""Requests on a simulated engine whose cache has groups."""

from random import Random
from typing import Any

import pytest

from app.core.base.clock.random_streams import Streams
from app.core.base.metrics.recorder import Recorder, RecorderOptions
from app.core.engine.batch import LoRASlots
from app.core.engine.engine import Engine, EngineParts
from app.core.engine.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from app.core.engine.kvcache.hashing import BlockHasher
from app.core.engine.lora import Adapter
from app.core.engine.outputs import Started, Tokens
from app.core.engine.profile import Profile, read_profile
from app.core.engine.request import LENGTH, EngineRequest, Reply
from app.extensions.cache_groups.cache import GroupedCache
from app.extensions.cache_groups.layers import group_layers
from app.extensions.cache_groups.options import CacheOptions
from app.extensions.cache_groups.presets import PRESETS
from app.shared.step_policies.choice import simulated_policies
from app.shared.virtual_clock import VirtualClock
from config.settings import LatencySettings, SchedulingSettings, Settings, StepSettings
from tests.core.engine.harness import engine_request, sections_of
from vllm_facts.model_shape import ModelShape

BLOCK_SIZE = 16
STEP_TOKENS = 256
LAYERS = {
    "gpt-oss": PRESETS["gpt-oss"],
    "short windows": ModelShape(
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 4,
        sliding_window=100,
    ),
    "qwen3-next": PRESETS["qwen3-next"],
}


class CountingModel:
    """Replies as many tokens as the request asks for."""

    def reply(self, request: EngineRequest) -> Reply:
        """Returns the reply."""
        ids = list(range(request.max_tokens))
        return Reply([""] * len(ids), ids, LENGTH)


class HybridEngine:
    """An engine with a cache of `blocks` blocks for a model with `layers`."""

    def __init__(self, layers: ModelShape, blocks: int, profile: Profile | None) -> None:
        self.clock = VirtualClock(1000.0)
        self.events: list[KVEvent] = []
        self.outputs: list[Any] = []
        recorder = Recorder("m", 4096, {}, options=RecorderOptions(steps=profile is not None))
        options = CacheOptions(
            group_layers(layers),
            retention_blocks=0,
            max_batched_tokens=STEP_TOKENS,
            max_model_len=4096,
            max_prompt_tokens=STEP_TOKENS,
            in_steps=profile is not None,
        )
        self.cache = GroupedCache(
            blocks,
            BlockHasher("sha256_cbor", BLOCK_SIZE, "0", Random(1)),
            recorder,
            options=options,
            adapter_of=lambda name: Adapter(name, name),
            publish=self.events.extend,
        )
        settings = Settings(
            latency=LatencySettings(time_to_first_token=0.05, inter_token_latency=0.01),
            scheduling=SchedulingSettings(max_num_seqs=16),
            steps=StepSettings(max_num_batched_tokens=STEP_TOKENS, async_scheduling=False),
        )
        parts = EngineParts(
            model=CountingModel(),
            recorder=recorder,
            clock=self.clock,
            streams=Streams(1, 0),
            lora=LoRASlots(0, lambda name: False),
            cache=self.cache,
            policies=[simulated_policies],
        )
        self.engine = Engine(sections_of(settings), parts, profile)

    def submit(self, number: int, prompt: list[int], max_tokens: int) -> None:
        """Submits a completion."""
        request = engine_request(
            request_id=str(number),
            prompt_ids=prompt,
            max_tokens=max_tokens,
            arrival_s=self.clock.now(),
        )
        self.engine.submit([request], self.outputs.append)

    def hits(self) -> list[int]:
        """Returns the cached tokens of all requests that have started, in order."""
        return [output.cached_tokens for output in self.outputs if isinstance(output, Started)]

    def ended(self) -> list[Tokens]:
        """Returns the last output of each request that has ended."""
        tokens = [output for output in self.outputs if isinstance(output, Tokens)]
        return [output for output in tokens if output.finish is not None]


timings = pytest.mark.parametrize(
    "profile", [None, read_profile("qwen3-14b-h100")], ids=["requests", "steps"]
)


@timings
@pytest.mark.parametrize("name", LAYERS)
def test_many_requests_in_a_small_cache_release_all_blocks(
    name: str, profile: Profile | None
) -> None:
    random = Random(7)
    hybrid = HybridEngine(LAYERS[name], 160, profile)
    for number in range(120):
        shared = random.choice([0, 64, 200])
        prompt = [*range(shared), *[5000 + number] * random.randint(1, 300)]
        hybrid.submit(number, prompt, random.randint(1, 90))
        hybrid.clock.advance(random.choice([0.0, 0.02]))

    hybrid.clock.advance(600)

    assert len(hybrid.ended()) == 120
    assert hybrid.cache.pool.free == hybrid.cache.pool.capacity
    assert not hybrid.cache.running
    assert max(hybrid.hits()) >= 64


@timings
@pytest.mark.parametrize("name", LAYERS)
def test_kv_events_describe_the_blocks_of_each_cache_group(
    name: str, profile: Profile | None
) -> None:
    random = Random(3)
    hybrid = HybridEngine(LAYERS[name], 160, profile)
    for number in range(60):
        hybrid.submit(number, [*range(100), *[9000 + number] * random.randint(1, 300)], 40)
    hybrid.clock.advance(600)
    copies: dict[tuple[int | None, object], int] = {}
    for event in hybrid.events:
        assert not isinstance(event, AllBlocksCleared)
        for block_hash in event.block_hashes:
            key = event.group_idx, block_hash
            copies[key] = copies.get(key, 0) + (1 if isinstance(event, BlockStored) else -1)

    assert min(copies.values()) >= 0
    assert any(isinstance(event, BlockRemoved) for event in hybrid.events)
    unused = [block for block in hybrid.cache.pool.free_blocks() if block.hash is not None]
    assert sum(copies.values()) == len(unused)


@timings
def test_prefix_shared_by_several_prompts_is_hit_by_the_third_prompt(
    profile: Profile | None,
) -> None:
    hybrid = HybridEngine(LAYERS["gpt-oss"], 400, profile)
    for number in range(3):
        hybrid.submit(number, [*range(200), *[9000 + number] * 100], 2)
        hybrid.clock.advance(20)

    assert hybrid.hits() == [0, 0, 192]


def test_longest_accepted_prompt_fills_over_90_percent_of_the_cache() -> None:
    hybrid = HybridEngine(LAYERS["gpt-oss"], 401, read_profile("qwen3-14b-h100"))
    limit = hybrid.cache.max_tokens

    hybrid.submit(0, [1] * (limit - 1), 1)
    hybrid.clock.advance(60)

    assert limit > 0.9 * 400 * BLOCK_SIZE
    assert len(hybrid.ended()) == 1
