"""An engine on a virtual clock whose blocks are stored in tiers."""

from random import Random
from typing import Any

from msgspec.structs import replace

from app.core.base.clock.random_streams import Streams
from app.core.base.metrics.recorder import Recorder, RecorderOptions
from app.core.engine.batch import LoRASlots
from app.core.engine.engine import Engine, EngineParts
from app.core.engine.kvcache.events import KVEvent
from app.core.engine.kvcache.hashing import BlockHasher
from app.core.engine.lora import Adapter
from app.core.engine.outputs import Started, Tokens
from app.core.engine.profile import read_profile
from app.core.engine.request import LENGTH, EngineRequest, Reply
from app.core.engine.sequence import Handle
from app.extensions.kv_offload.cache import TieredCache
from app.extensions.kv_offload.options import OffloadOptions
from app.shared.step_policies.choice import simulated_policies
from app.shared.virtual_clock import VirtualClock
from config.settings import LatencySettings, SchedulingSettings, Settings, StepSettings
from tests.core.engine.harness import engine_request, sections_of

BLOCK_SIZE = 16
BLOCK_BYTES = 1e6
BANDWIDTH = 1e7
"""Bytes per second: a block takes 0.1 s."""
START_S = 1000.0
PROFILE = read_profile("qwen3-14b-h100")


class CountingModel:
    """Replies as many tokens as the request asks for."""

    def reply(self, request: EngineRequest) -> Reply:
        """Returns the reply."""
        ids = list(range(request.max_tokens))
        return Reply([""] * len(ids), ids, LENGTH)


class TieredEngine:
    """An engine with `blocks` blocks; `options` are those of the tiers."""

    def __init__(self, blocks: int, *, steps: bool = True, chunks: int = 100, **options: Any):
        self.clock = VirtualClock(START_S)
        self.events: list[KVEvent] = []
        self.outputs: dict[str, list[Any]] = {}
        self.recorder = Recorder("m", 4096, {}, options=RecorderOptions(steps=steps))
        base = OffloadOptions(
            chunks=chunks, block_bytes=BLOCK_BYTES, bandwidth=BANDWIDTH, in_steps=steps
        )
        self.cache = TieredCache(
            blocks,
            BlockHasher("sha256_cbor", BLOCK_SIZE, "0", Random(1)),
            self.recorder,
            options=replace(base, **options),
            adapter_of=lambda name: Adapter(name, name),
            publish=self.events.extend,
        )
        settings = Settings(
            latency=LatencySettings(time_to_first_token=0.05, inter_token_latency=0.01),
            scheduling=SchedulingSettings(max_num_seqs=16),
            steps=StepSettings(max_num_batched_tokens=512),
        )
        parts = EngineParts(
            model=CountingModel(),
            recorder=self.recorder,
            clock=self.clock,
            streams=Streams(1, 0),
            lora=LoRASlots(0, lambda name: False),
            cache=self.cache,
            policies=[simulated_policies],
        )
        self.engine = Engine(sections_of(settings), parts, PROFILE if steps else None)

    def submit(self, name: str, prompt: list[int], max_tokens: int = 1) -> Handle:
        """Submits a completion."""
        outputs = self.outputs.setdefault(name, [])
        request = engine_request(
            request_id=name,
            prompt_ids=prompt,
            max_tokens=max_tokens,
            arrival_s=self.clock.now(),
        )
        return self.engine.submit([request], outputs.append)

    def complete(self, name: str, prompt: list[int], max_tokens: int = 1) -> int:
        """Submits a completion, and lets it end; returns its cached tokens."""
        self.submit(name, prompt, max_tokens)
        self.clock.advance(60)
        return self.cached_tokens(name)

    def cached_tokens(self, name: str) -> int:
        """Returns the cached tokens in the usage of a request."""
        [started] = [output for output in self.outputs[name] if isinstance(output, Started)]
        return started.cached_tokens

    def first_token_s(self, name: str) -> float:
        """Returns the time of the first token of a request, since the start."""
        tokens = [output for output in self.outputs[name] if isinstance(output, Tokens)]
        return tokens[0].at_s - START_S

    def has_ended(self, name: str) -> bool:
        """Returns whether a request has its last token."""
        outputs = self.outputs[name]
        return any(isinstance(output, Tokens) and output.finish for output in outputs)

    def metric(self, name: str, *labels: str) -> float:
        """Returns the value of `vllm:name`."""
        [line] = [
            line
            for line in self.recorder.render().splitlines()
            if line.startswith(f"vllm:{name}{{") and all(label in line for label in labels)
        ]
        return float(line.rpartition(" ")[2])

    @property
    def used_blocks(self) -> int:
        """Blocks that are not free."""
        return self.cache.pool.capacity - self.cache.pool.free


def prompt_of(number: int, blocks: int = 4, tokens: int = 1) -> list[int]:
    """Returns a prompt of `blocks` full blocks and `tokens` further tokens."""
    return [1000 * number + place for place in range(blocks * BLOCK_SIZE + tokens)]
