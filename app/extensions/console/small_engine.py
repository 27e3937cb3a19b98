"""A small simulated engine on a virtual clock, with an observer: a part of a lesson."""

import time
from collections.abc import Sequence
from functools import partial

from app.core.base.clock.random_streams import Streams
from app.core.base.metrics.recorder import Recorder, RecorderOptions
from app.core.engine.batch import LoRASlots
from app.core.engine.engine import Engine, EngineParts
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.kvcache.hashing import BlockHasher
from app.core.engine.lifecycle import Lifecycle
from app.core.engine.lora import Adapter
from app.core.engine.outputs import EngineOutput
from app.core.engine.profile import read_profile
from app.core.engine.request import LENGTH, EngineRequest, Reply, Watch
from app.core.engine.request import Observer as RequestObserver
from app.core.engine.sampling import Sampling
from app.core.engine.sections import EngineSections
from app.extensions.console.bars import Origin
from app.extensions.console.lesson import PROFILE, EngineSize
from app.extensions.console.observer import ObservedEngine, Observer
from app.extensions.explanation.delays import DelayLog
from app.shared.virtual_clock import VirtualClock
from config.settings import (
    KVCacheSettings,
    LatencySettings,
    LoraSettings,
    SchedulingSettings,
    StepSettings,
)

MODEL = "lesson"
BLOCK_SIZE = 16
MAX_MODEL_LEN = 40_960
TRANSFER_S_PER_TOKEN = 1e-5
"""Transfer of the KV cache of a token, 160 KB, at 16 GB/s."""
SEED = 1


class LengthModel:
    """Replies with as many tokens as requested, without text."""

    def reply(self, request: EngineRequest) -> Reply:
        """Returns a reply of exactly `max_tokens` tokens."""
        tokens = request.max_tokens
        return Reply(texts=[""] * tokens, ids=[0] * tokens, finish=LENGTH)


class SmallEngine:
    """An engine with shared steps and a KV cache, and its observer."""

    def __init__(self, size: EngineSize) -> None:
        self._clock = VirtualClock()
        streams = Streams(SEED, 0)
        recorder = Recorder(
            MODEL, MAX_MODEL_LEN, {}, options=RecorderOptions(max_loras=None, steps=True)
        )
        cache = KVCacheManager(
            size.num_gpu_blocks,
            BlockHasher("xxhash", BLOCK_SIZE, "0", streams("hashes")),
            recorder,
            adapter_of=_no_adapter,
            publish=None,
        )
        steps = StepSettings(timing="steps", max_num_batched_tokens=size.max_num_batched_tokens)
        sections = EngineSections(
            scheduling=SchedulingSettings(max_num_seqs=size.max_num_seqs),
            latency=LatencySettings(kv_cache_transfer_time_per_token=TRANSFER_S_PER_TOKEN),
            lora=LoraSettings(),
            steps=steps,
            kvcache=KVCacheSettings(enable_kvcache=True, kv_cache_size=size.num_gpu_blocks),
        )
        parts = EngineParts(
            model=LengthModel(),
            recorder=recorder,
            clock=self._clock,
            streams=streams,
            lora=LoRASlots(1, _has_adapter),
            cache=cache,
        )
        self._engine = Engine(sections, parts, read_profile(PROFILE))
        observed = ObservedEngine(
            engine=self._engine,
            lifecycle=Lifecycle(self._engine, recorder, cache),
            delays=DelayLog().attach(self._engine),
            cache=cache,
        )
        self.observer = Observer(observed, self._clock.now, time.time)
        self.blocks = cache.capacity

    def advance_to(self, moment_s: float) -> None:
        """Runs the engine until this time, in seconds since its start."""
        self._clock.advance(max(0.0, moment_s - self._clock.now()))

    def submit(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int,
        remote_prefill: bool = False,
        arrival_s: float | None = None,
        on_end: Watch | None = None,
    ) -> None:
        """Submits a request that arrived at `arrival_s` or now; `on_end` receives its outcome."""
        if arrival_s is None:
            arrival_s = self._clock.now()
        observers: list[RequestObserver] = [
            partial(self.observer.bars.watch, Origin(path="/v1/completions"))
        ]
        if on_end is not None:
            observers.append(partial(_watch_with, on_end))
        request = EngineRequest(
            request_id=name,
            index=0,
            model=MODEL,
            prompt_ids=prompt,
            echo_text="",
            max_tokens=max_tokens,
            sampling=Sampling(max_tokens=max_tokens, ignore_eos=True),
            arrival_s=arrival_s,
            remote_prefill=remote_prefill,
            observers=observers,
        )
        self._engine.submit([request], _drop)


def _watch_with(watch: Watch, request: EngineRequest) -> Watch:
    return watch


def _no_adapter(name: str) -> Adapter:
    return Adapter(name, "")


def _has_adapter(name: str) -> bool:
    return False


def _drop(event: EngineOutput) -> None:
    """Receives the tokens of a lesson, which no client reads."""
