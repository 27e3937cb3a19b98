"""An engine with a simulated model on a virtual clock, and everything that comes out of it written
down.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

from msgspec.structs import replace

from app.core.base.clock.random_streams import Streams
from app.core.base.clock.timer_wheel import SLOTS_PER_S
from app.core.base.metrics.recorder import Recorder, RecorderOptions
from app.core.engine.batch import LoRASlots, SchedulerRules
from app.core.engine.constraints import Constraints
from app.core.engine.engine import Engine, EngineParts, Search
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.kvcache.events import KVEvent
from app.core.engine.kvcache.hashing import BlockHasher
from app.core.engine.lora import Adapter
from app.core.engine.outputs import EngineOutput, Failed, Started, Tokens
from app.core.engine.profile import Profile, SpeculationRates, read_profile
from app.core.engine.request import EngineRequest, Observer
from app.core.engine.sampling import Sampling
from app.core.engine.sections import EngineSections
from app.core.engine.sequence import Handle
from app.core.engine.simulated.corpus import Corpus, sample_sentences
from app.core.engine.simulated.model import RandomStreams, SimulatedModel
from app.core.text.base import Tokenizer
from app.core.text.huggingface import default_tokenizer
from app.shared.step_policies.choice import simulated_policies
from app.shared.virtual_clock import VirtualClock
from config.settings import (
    LatencySettings,
    ReplySettings,
    SchedulingSettings,
    Settings,
    StepSettings,
)
from config.validation import LiveSettings
from tests.core.metrics.sample_lines import sample_lines

BLOCK_TOKENS = 8
SLOT_S = 1 / SLOTS_PER_S
START_S = 1000.0


@cache
def embedded_tokenizer() -> Tokenizer:
    return default_tokenizer()


@cache
def embedded_corpus() -> Corpus:
    return Corpus(embedded_tokenizer(), sample_sentences())


def engine_request(**fields: Any) -> EngineRequest:
    """A generation of exactly five tokens, unless `fields` say otherwise."""
    sampling: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True}
    for name in Sampling.__struct_fields__:
        if name in fields and name != "max_tokens":
            sampling[name] = fields.pop(name)
    if not fields.pop("limited", True):
        del sampling["max_tokens"]
    request_fields = {
        "request_id": "cmpl-1",
        "index": 0,
        "model": "test",
        "prompt_ids": [5, 6, 7],
        "echo_text": "What goes in comes out.",
        "max_tokens": 5,
        "arrival_s": START_S,
        "sampling": Sampling(**sampling),
        **fields,
    }
    return EngineRequest(**request_fields)  # type: ignore[arg-type]


def sections_of(settings: Settings) -> EngineSections:
    return EngineSections(
        scheduling=settings.scheduling,
        latency=settings.latency,
        lora=settings.lora,
        steps=settings.steps,
        kvcache=settings.kvcache,
    )


class Harness:
    """`sections` are sections of Settings, `latency` fields of LatencySettings."""

    def __init__(
        self,
        slots: int = 2,
        max_waiting: int = 100,
        max_unfinished: int | None = None,
        mode: str = "random",
        seed: int = 1,
        adapters: Sequence[str] = (),
        max_loras: int = 1,
        by_priority: bool = False,
        sections: Mapping[str, Any] | None = None,
        blocks: int | None = None,
        clock: Any = None,
        profile: Profile | None = None,
        rules: SchedulerRules = SchedulerRules(),  # noqa: B008
        schemas: Constraints | None = None,
        search: Search | None = None,
        **latency: Any,
    ) -> None:
        self.adapters = set(adapters)
        self.clock = clock or VirtualClock(START_S)
        self.recorder = Recorder(
            "test",
            4096,
            {},
            options=RecorderOptions(max_loras=max_loras, steps=profile is not None),
        )
        self.settings = settings = Settings(
            reply=ReplySettings(mode=mode),  # type: ignore[arg-type]
            latency=LatencySettings(**latency),
            scheduling=SchedulingSettings(
                max_num_seqs=slots,
                max_waiting_queue_length=max_waiting,
                max_num_queued_reqs=max_unfinished,
                scheduling_policy="priority" if by_priority else "fcfs",
            ),
            **(sections or {}),
        )
        model = SimulatedModel(
            LiveSettings(settings),
            embedded_tokenizer(),
            embedded_corpus(),
            recorded=None,
            schemas=schemas or Constraints(),
            streams=RandomStreams(text=Random(seed), calls=Random(seed)),
        )
        self.kv_events: list[KVEvent] = []
        self.cache = None
        if blocks is not None:
            hasher = BlockHasher("sha256_cbor", BLOCK_TOKENS, "0", Random(seed))
            self.cache = KVCacheManager(
                blocks,
                hasher,
                self.recorder,
                adapter_of=lambda name: Adapter(name, "/" + name),
                publish=self.kv_events.extend,
            )
        self.lora = LoRASlots(max_loras, lambda adapter: adapter in self.adapters)
        parts = EngineParts(
            model=model,
            recorder=self.recorder,
            clock=self.clock,
            streams=Streams(seed, 0),
            lora=self.lora,
            cache=self.cache,
            rules=rules,
            search=search,
            policies=[simulated_policies],
        )
        self.engine = Engine(sections_of(settings), parts, profile)
        self.wheel = self.engine.wheel
        self.observers: list[Observer] = []
        """Asked about every sequence."""
        self.events: list[tuple[str, EngineOutput]] = []
        """(request id, event) as they came."""

    def ask(self, request_id: str = "a", choices: int = 1, **fields: Any) -> Handle:
        """A request of `choices` choices that arrives now."""
        request_fields = {
            "request_id": request_id,
            "arrival_s": self.clock.now(),
            "n": choices,
            "observers": self.observers,
            **fields,
        }
        engine_requests = [
            engine_request(**request_fields, index=index) for index in range(choices)
        ]
        return self.engine.submit(
            engine_requests, lambda event: self.events.append((request_id, event))
        )

    def outputs(self, request_id: str = "a", index: int = 0) -> list[EngineOutput]:
        return [event for name, event in self.events if name == request_id and event.index == index]

    def tokens(self, request_id: str = "a", index: int = 0) -> list[Tokens]:
        return [event for event in self.outputs(request_id, index) if isinstance(event, Tokens)]

    def said(self, request_id: str = "a", index: int = 0) -> str:
        return "".join(text for event in self.tokens(request_id, index) for text in event.texts)

    def finish(self, request_id: str = "a", index: int = 0) -> str | None:
        """The finish reason, `error`, or None when it is not over."""
        last = self.outputs(request_id, index)[-1]
        if isinstance(last, Started):
            return None
        if isinstance(last, Failed):
            return "error"
        return last.finish and last.finish.reason

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of `vllm:name` with `labels`."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = sample_lines(self.recorder, f"vllm:{name}")
        assert lines, name
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if all(label in line for label in wanted)
        )

    def gauges(self) -> tuple[float, float]:
        """(running, waiting) as the metrics tell."""
        return self.metric("num_requests_running"), self.metric("num_requests_waiting")

    def is_idle(self) -> bool:
        executor = self.engine.executor
        return self.gauges() == (0, 0) and (executor.running, executor.waiting) == (0, 0)


PROFILE = read_profile("qwen3-14b-h100")


def stepped(**fields: Any) -> Harness:
    fields = {"slots": 3, "profile": PROFILE, **fields}
    return Harness(sections={"steps": StepSettings(timing="steps")}, **fields)


def moments(harness: Harness, request_id: str) -> list[float]:
    return [event.at_s - START_S for event in harness.tokens(request_id) for _ in event.ids]


def harness_with_draft_slots() -> Harness:
    """Steps of 20 tokens of two sequences, each of which reserves three tokens for drafts."""
    rates = SpeculationRates(acceptance=(1.0,), draft_slots=3)
    return Harness(
        slots=2,
        profile=replace(PROFILE, speculation=rates),
        rules=SchedulerRules(counts_draft_slots=False),
        sections={"steps": StepSettings(timing="steps", max_num_batched_tokens=20)},
    )
