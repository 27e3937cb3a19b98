"""What a real vLLM said of its KV cache, the whole engine says, too:

whichever way time passes in it.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from app.core.base.clock.random_streams import Streams
from app.core.base.metrics.recorder import Recorder, RecorderOptions
from app.core.engine.batch import LoRASlots
from app.core.engine.engine import Engine, EngineParts
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.kvcache.events import KVEvent
from app.core.engine.kvcache.hashing import BlockHasher
from app.core.engine.lora import Adapter
from app.core.engine.outputs import Started
from app.core.engine.profile import Profile, read_profile
from app.core.engine.request import LENGTH, EngineRequest, Model, Reply
from app.shared.step_policies.choice import simulated_policies
from app.shared.virtual_clock import VirtualClock
from config.settings import LatencySettings, Settings
from tests.core.engine.harness import engine_request, sections_of
from tests.core.kvcache.caches import check
from tests.core.kvcache.test_recording import BLOCK_SIZE, BLOCKS, RECORDING, recorded_batches


class Recorded:
    """Says what was recorded."""

    def reply(self, request: EngineRequest) -> Reply:
        ids = RECORDING[int(request.request_id)]["reply"]
        return Reply([""] * len(ids), ids, LENGTH)


class OneToken:
    """Ends every reply with its first token."""

    def reply(self, request: EngineRequest) -> Reply:
        return Reply([""], [7], LENGTH)


class Play:
    """An engine with a small cache; `batches` are published so far."""

    def __init__(self, model: Model, profile: Profile | None) -> None:
        self.batches: list[Sequence[KVEvent]] = []
        self.recorder, self.clock = (
            Recorder("m", 4096, {}, options=RecorderOptions(steps=profile is not None)),
            VirtualClock(1000.0),
        )
        hasher = BlockHasher("sha256_cbor", BLOCK_SIZE, "0", Random(1))
        self.cache = KVCacheManager(
            BLOCKS,
            hasher,
            self.recorder,
            adapter_of=lambda name: Adapter(name, name),
            publish=self.batches.append,
        )
        latency = LatencySettings(time_to_first_token=0.05, inter_token_latency=0.01)
        settings = Settings(latency=latency)
        lora = LoRASlots(0, lambda name: False)
        parts = EngineParts(
            model=model,
            recorder=self.recorder,
            clock=self.clock,
            streams=Streams(1, 0),
            lora=lora,
            cache=self.cache,
            policies=[simulated_policies],
        )
        self.engine = Engine(sections_of(settings), parts, profile)

    def ask(self, *prompts: list[int], **fields: Any) -> list[tuple[int, int]]:
        """Cached and created tokens of each prompt of a request, when all is over."""
        outputs: list[Any] = []
        fields = {
            "max_tokens": 1,
            "arrival_s": self.clock.now(),
            "num_choices": len(prompts),
            **fields,
        }
        requests = [
            engine_request(prompt_ids=prompt, index=place, **fields)
            for place, prompt in enumerate(prompts)
        ]
        self.engine.submit(requests, outputs.append)
        self.clock.advance(20)
        return [
            (output.cached_tokens, output.created_tokens)
            for output in outputs
            if isinstance(output, Started)
        ]

    def take_batches(self) -> list[list[int]]:
        """The batches since the last call: blocks of each event, 0 where all are cleared."""
        batches = [
            [len(getattr(event, "block_hashes", ())) for event in batch] for batch in self.batches
        ]
        self.batches.clear()
        return batches


timings = pytest.mark.parametrize(
    "profile", [None, read_profile("qwen3-14b-h100")], ids=["requests", "steps"]
)


@timings
def test_prompts_of_one_request_share_cached_blocks_as_recorded_from_vllm(
    profile: Profile | None,
) -> None:
    play = Play(OneToken(), profile)
    first = list(range(100))
    assert play.cache.reset() and play.take_batches() == [], "the next step tells it"
    cases: list[tuple[list[list[int]], dict[str, Any], list[tuple[int, int]], list[list[int]]]] = [
        ([first], {}, [(0, 96)], [[0, 3]]),
        ([first], {}, [(96, 0)], []),
        ([first[:96]], {}, [(64, 32)], [[1]]),
        ([first], {"cache_salt": "s"}, [(0, 96)], [[3]]),
        ([first], {"prompt_logprobs": 0}, [(0, 96)], [[3]]),
        (
            [[200 + token for token in first], [400 + token for token in first[:70]]],
            {},
            [(0, 96), (0, 64)],
            [[3], [2]],
        ),
        ([[9] * 31], {}, [(0, 0)], []),
    ]
    for prompts, fields, tokens, batches in cases:
        assert (play.ask(*prompts, **fields), play.take_batches()) == (tokens, batches), fields
    assert play.cache.reset()
    assert (play.ask([9] * 31), play.take_batches()) == ([(0, 0)], [[0]])
    check(play.cache)


def test_prompt_that_bypasses_the_cache_is_not_counted_as_a_query() -> None:
    play = Play(OneToken(), None)
    play.ask(list(range(100)))
    play.ask(list(range(100)), prompt_logprobs=1)
    assert play.recorder.figures().queries == 100


@timings
def test_every_step_emits_the_kv_events_recorded_from_vllm(profile: Profile | None) -> None:
    play = Play(Recorded(), profile)
    batches = play.batches
    clock = play.clock
    engine = play.engine
    cache = play.cache
    published = 0
    for number, request in enumerate(RECORDING):
        batches.clear()
        outputs: list[Any] = []
        engine_request_of_step = engine_request(
            request_id=str(number),
            prompt_ids=request["prompt"],
            cache_salt=request["salt"],
            max_tokens=len(request["reply"]),
            arrival_s=clock.now(),
        )
        engine.submit([engine_request_of_step], outputs.append)
        clock.advance(20)
        [started] = [output for output in outputs if isinstance(output, Started)]
        assert started.cached_tokens == request["cached_tokens"]
        assert [msgspec.to_builtins(batch) for batch in batches] == recorded_batches(request)
        assert request["sequence"] == list(range(published, published := published + len(batches)))
    check(cache)
