"""What a real vLLM said of its KV cache, the whole engine says, too: whichever way time passes in it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from app.clock.clock import VirtualClock
from app.clock.streams import Streams
from app.engine.cache_manager import KVCacheManager
from app.engine.engine import Engine
from app.engine.outputs import Started
from app.engine.reply import LENGTH, Reply
from app.engine.request import EngineRequest
from app.kvcache.cache import KVCache
from app.kvcache.events import KVEvent
from app.kvcache.hashing import BlockHasher
from app.kvcache.prompt import Adapter
from app.lora.adapters import LoRASlots
from app.metrics.recorder import Recorder
from config.profile import Profile, read_profile
from config.settings import LatencySettings, Settings
from tests.engine.harness import engine_request
from tests.kvcache.make_facts import BLOCK_SIZE
from tests.kvcache.test_recording import BLOCKS, RECORDING, recorded_batches


class Recorded:
    """Says what was recorded."""

    def reply(self, request: EngineRequest) -> Reply:
        ids = RECORDING[int(request.request_id)]["reply"]
        return Reply([""] * len(ids), ids, LENGTH)


@pytest.mark.parametrize("profile", [None, read_profile("qwen3-14b-h100")], ids=["requests", "steps"])
def test_every_step_has_the_recorded_events(profile: Profile | None) -> None:
    batches: list[Sequence[KVEvent]] = []
    recorder, clock = Recorder("m", 4096, {}, steps=profile is not None), VirtualClock(1000.0)
    cache = KVCache(BLOCKS, BlockHasher("sha256_cbor", BLOCK_SIZE, "0", Random(1)))
    manager = KVCacheManager(cache, recorder, lambda name: Adapter(name, name), batches.append)
    latency = LatencySettings(time_to_first_token=0.05, inter_token_latency=0.01)
    settings, lora = Settings(latency=latency), LoRASlots(0, lambda name: False)
    engine = Engine(settings, Recorded(), recorder, clock, Streams(1, 0), lora, manager, profile)
    for number, request in enumerate(RECORDING):
        batches.clear()
        outputs: list[Any] = []
        asked = engine_request(
            request_id=str(number),
            prompt_ids=request["prompt"],
            cache_salt=request["salt"],
            max_tokens=len(request["reply"]),
            arrival_s=clock.now(),
        )
        engine.submit([asked], outputs.append)
        clock.advance(20)
        [started] = [output for output in outputs if isinstance(output, Started)]
        assert started.cached_tokens == request["cached_tokens"]
        assert [msgspec.to_builtins(batch) for batch in batches] == recorded_batches(request)
    cache.check_integrity()
