"""Plays a lesson: a private simulated engine on a virtual clock, with an observer.

The result is a recording of the page. It depends neither on the settings of the server nor on its
load, and takes a fraction of a second, with pauses for other requests.
"""

import time
from functools import partial
from itertools import count

from app.core.base.clock.clock import VirtualClock
from app.core.base.clock.pause import Pace
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
from app.core.engine.request import LENGTH, EngineRequest, Reply
from app.core.engine.sections import EngineSections
from app.extensions.console.bars import Origin
from app.extensions.console.frames import Frame, Picture
from app.extensions.console.lesson import PROFILE, Arrival, Lesson
from app.extensions.console.observer import ObservedEngine, Observer
from app.extensions.explanation.delays import DelayLog
from config.settings import (
    KVCacheSettings,
    LatencySettings,
    LoraSettings,
    SchedulingSettings,
    StepSettings,
)

MODEL = "lesson"
BLOCK_SIZE = 16
FRAME_S = 0.05
TAIL_S = 0.5
"""Time after the last end."""
MAX_SECONDS = 60.0
MAX_MODEL_LEN = 40_960
TRANSFER_S_PER_TOKEN = 1e-5
"""Transfer of the KV cache of a token, 160 KB, at 16 GB/s."""
PREFIX_TOKENS = 5984
"""Tokens that prompts with the same prefix share: whole blocks."""
FIRST_UNIQUE_TOKEN = 1000
"""Shared prefixes consist of smaller token ids."""
SEED = 1


class LengthModel:
    """Replies with as many tokens as requested, without text."""

    def reply(self, request: EngineRequest) -> Reply:
        """Returns a reply of exactly `max_tokens` tokens."""
        tokens = request.max_tokens
        return Reply(texts=[""] * tokens, ids=[0] * tokens, finish=LENGTH)


class LessonEngine:
    """A small engine that plays one lesson."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._clock = VirtualClock()
        self._token_ids = count(FIRST_UNIQUE_TOKEN)
        streams = Streams(SEED, 0)
        size = lesson.engine
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
        self._observer = Observer(observed, self._clock.now, time.time)
        self._blocks = cache.capacity

    def play(self) -> list[Picture | Frame]:
        """Returns a picture, and the frames until all requests have ended. May pause."""
        self._observer.start()
        recording: list[Picture | Frame] = [self._observer.picture(self._server())]
        arrivals = sorted(self._lesson.arrivals, key=_arrival_time)
        pause = Pace(time.monotonic)
        end_s = MAX_SECONDS
        sent = 0
        ended = 0
        while self._clock.now() < end_s:
            frame_s = self._clock.now() + FRAME_S
            while sent < len(arrivals) and arrivals[sent].at_s <= frame_s:
                self._advance_to(arrivals[sent].at_s)
                self._send(arrivals[sent], sent + 1)
                sent += 1
            self._advance_to(frame_s)
            frame = self._observer.frame()
            recording.append(frame)
            ended += len(frame.ended)
            if frame.ended and ended == len(arrivals):
                end_s = self._clock.now() + TAIL_S
            pause()
        return recording

    def _advance_to(self, moment_s: float) -> None:
        self._clock.advance(max(0.0, moment_s - self._clock.now()))

    def _send(self, arrival: Arrival, number: int) -> None:
        shared = 0
        if arrival.prefix:
            shared = PREFIX_TOKENS
        prompt = [arrival.prefix] * shared
        prompt += [next(self._token_ids) for _ in range(arrival.prompt_tokens - shared)]
        watch = partial(self._observer.bars.watch, Origin(path="/v1/completions"))
        request = EngineRequest(
            request_id=f"r{number}",
            index=0,
            model=MODEL,
            prompt_ids=prompt,
            echo_text="",
            max_tokens=arrival.output_tokens,
            limited=True,
            ignore_eos=True,
            arrival_s=self._clock.now(),
            remote_prefill=arrival.is_remote,
            observers=(watch,),
        )
        self._engine.submit([request], _drop)

    def _server(self) -> dict[str, object]:
        """Returns the constants of the engine, as in a picture of the server."""
        size = self._lesson.engine
        return {
            "plays": "",
            "model": f"lesson: {self._lesson.title}",
            "rank": 0,
            "ranks": {},
            "places": size.max_num_seqs,
            "shared_steps": True,
            "profile": PROFILE,
            "budget": size.max_num_batched_tokens,
            "blocks": self._blocks,
            "numbered": True,
            "block_size": BLOCK_SIZE,
            "adapter_slots": 0,
            "publishes": False,
            "index": False,
            "scripts": False,
        }


def _arrival_time(arrival: Arrival) -> float:
    return arrival.at_s


def _no_adapter(name: str) -> Adapter:
    return Adapter(name, "")


def _has_adapter(name: str) -> bool:
    return False


def _drop(event: EngineOutput) -> None:
    """Receives the tokens of a lesson, which no client reads."""
