"""Builds the recorder of metrics, the KV cache, and the engine, simulated or an extension's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from app.core.api.chat.rules import ChatRules
from app.core.assembly.derived import cache_config
from app.core.base.metrics.recorder import Recorder, RecorderOptions
from app.core.engine.batch import LoRASlots, SchedulerRules
from app.core.engine.constraints import Constraints
from app.core.engine.engine import Engine, EngineParts
from app.core.engine.request import ScriptedReply
from app.core.engine.sections import EngineSections
from app.core.engine.simulated.corpus import Corpus, sample_sentences
from app.core.engine.simulated.model import NullModel, RandomStreams, SimulatedModel
from app.core.versions.chain import simulated_version
from config.settings import LatencySettings, SchedulingSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from app.core.engine.engine import Search
    from app.core.engine.kvcache.publisher import Publisher
    from app.core.engine.profile import Profile
    from app.core.engine.request import EngineRequest, Model, Reply
    from app.core.engine.step_cost import CostModel
    from app.core.extensions import ServerParts


class ReplySource:
    """Converts what an extension decides about a reply to tokens."""

    def __init__(
        self,
        decide: Callable[[EngineRequest, Random], str | ScriptedReply | None],
        tokenize: Callable[[EngineRequest, ScriptedReply], Reply],
    ) -> None:
        self._decide = decide
        self._tokenize = tokenize

    def __call__(self, request: EngineRequest, rng: Random) -> Reply | None:
        """Returns the reply; None to leave it to the next source."""
        decision = self._decide(request, rng)
        if isinstance(decision, str):
            decision = ScriptedReply(text=decision)
        if decision is None or decision.passes:
            return None
        return self._tokenize(request, decision)


class Simulation(NamedTuple):
    """The parts of a simulated engine that all ranks of a server share."""

    model: Model
    profile: Profile | None
    cost: CostModel | None
    search: Search | None


def build_recorder(parts: ServerParts, beside: Recorder | None = None) -> Recorder:
    """Returns the recorder of an engine's metrics, with the families that the settings need.

    `beside` is the recorder of the server's first engine.
    """
    settings = parts.settings
    lora = settings.lora
    shows_adapters = lora.enable_lora or lora.lora_modules or lora.allow_runtime_lora_updating
    latency = settings.latency
    has_transfer_latency = bool(
        latency.kv_cache_transfer_latency or latency.kv_cache_transfer_time_per_token
    )
    return Recorder(
        settings.model.served_names[0],
        settings.model.max_model_len,
        cache_config(settings.kvcache, settings.model, settings.api),
        str(parts.rank),
        options=RecorderOptions(
            max_loras=lora.max_loras if shows_adapters else None,
            block_times=settings.kvcache.kv_cache_metrics,
            older_names=settings.metrics.simulator_metrics,
            transfers=has_transfer_latency or settings.kvcache.kv_connector.startswith("nixl"),
            steps=settings.steps.shared or settings.engine.is_real,
            beside=beside,
        ),
    )


def build_constraints(parts: ServerParts) -> Constraints:
    """Returns an extension's constraints; without one, each is refused."""
    for extension in parts.extensions:
        constraints = extension.constraints()
        if constraints is not None:
            return constraints
    return Constraints()


def add_cache(parts: ServerParts) -> None:
    """Sets the simulated KV cache, and its publisher where a client may receive the events.

    An encoder has no cache, and a real engine has its own.
    """
    settings = parts.settings
    options = settings.kvcache
    is_simulated = not (settings.model.mm_encoder_only or settings.engine.is_real)
    if not is_simulated:
        return
    makers = [extension.kv_cache() for extension in parts.extensions]
    if not options.enable_kvcache and not any(makers):
        return
    from app.core.engine.kvcache.cache import KVCacheManager
    from app.core.engine.kvcache.hashing import BlockHasher
    from app.core.engine.kvcache.stores import store_of

    parts.publisher = _publisher(parts)
    parts.event_source = parts.publisher
    hasher = BlockHasher(
        options.prefix_caching_hash_algo,
        options.block_size,
        options.hash_seed,
        parts.streams("hashes"),
    )
    make_cache = next(filter(None, makers), KVCacheManager)
    parts.cache = make_cache(
        options.kv_cache_size,
        hasher,
        parts.recorder,
        adapter_of=parts.adapters.adapter,
        publish=None if parts.publisher is None else parts.publisher.put,
        store=store_of(options.kv_connector, options.block_size),
    )
    rules = simulated_version(settings.api).rules(SchedulerRules)
    parts.cache.tags_hash_keys = rules.tags_hash_keys
    if options.kv_cache_metrics:
        from app.core.engine.kvcache.residency import Residency

        residency = Residency(
            parts.recorder.instruments,
            options.kv_cache_metrics_sample,
            parts.streams("residency"),
            parts.clock.now,
        )
        parts.cache.pool.observers.append(residency)


def _publisher(parts: ServerParts) -> Publisher | None:
    has_endpoint = parts.kv_events.endpoint or parts.kv_events.replay_endpoint
    has_listener = any(extension.reads_kv_events for extension in parts.extensions)
    if not (has_endpoint or has_listener):
        return None
    from app.core.engine.kvcache.publisher import Publisher  # imports ZMQ

    return Publisher(parts.kv_events, loops=parts.loops)


def add_engine(parts: ServerParts) -> None:
    """Sets the engine of the first extension that has one, or else the simulated one."""
    for extension in parts.extensions:
        other = extension.engine()
        if other is not None:
            parts.engine = other.engine
            parts.recorder = other.engine.recorder
            parts.lifecycle = other.lifecycle
            parts.real_model = other.real_model
            parts.event_source = other.event_source
            return
    parts.engine = simulated_engine(parts, simulation_of(parts))


def simulation_of(parts: ServerParts) -> Simulation:
    """Returns the model of the simulated engine, and the profile of its steps."""
    settings = parts.settings
    profile: Profile | None = None
    cost: CostModel | None = None
    if settings.steps.shared:
        from app.core.profiles import chosen_profile
        from vllm_facts.speculative import drafts_of

        profile = chosen_profile(settings, decided=settings.table.by_name)
        profile = profile.with_drafts(drafts_of(settings))
        cost = _step_cost(parts, profile)
    searches = [extension.beam_search() for extension in parts.extensions]
    search = next(filter(None, searches), None)
    return Simulation(_simulated_model(parts), profile, cost, search)


def simulated_engine(parts: ServerParts, simulation: Simulation) -> Engine:
    """Returns a simulated engine with the cache and the recorder in `parts`."""
    settings = parts.settings
    lora_slots = LoRASlots(settings.lora.max_loras, parts.adapters.number, parts.adapter_memory)
    engine_parts = EngineParts(
        model=simulation.model,
        recorder=parts.recorder,
        clock=parts.clock,
        streams=parts.streams,
        lora=lora_slots,
        cache=parts.cache,
        rules=simulated_version(settings.api).rules(SchedulerRules),
        policies=list(filter(None, [extension.step_policies() for extension in parts.extensions])),
        search=simulation.search,
    )
    sections = EngineSections(
        scheduling=settings.scheduling,
        latency=settings.latency,
        lora=settings.lora,
        steps=settings.steps,
        kvcache=settings.kvcache,
    )
    makers = [extension.simulated_engine(parts.rank) for extension in parts.extensions]
    make_engine = next(filter(None, makers), Engine)
    engine = make_engine(sections, engine_parts, simulation.profile, simulation.cost)
    parts.live.follow(LatencySettings, engine.timing.apply)
    parts.live.follow(SchedulingSettings, engine.on_scheduling)
    return engine


def _step_cost(parts: ServerParts, profile: Profile) -> CostModel | None:
    for extension in parts.extensions:
        cost = extension.step_cost(profile)
        if cost is not None:
            return cost
    return None


def _simulated_model(parts: ServerParts) -> Model:
    settings = parts.settings
    if not settings.model.generates:
        return NullModel()
    recorded_replies = None
    for extension in parts.extensions:
        recorded_replies = recorded_replies or extension.recorded_replies()
    model = SimulatedModel(
        parts.live,
        parts.tokenizer,
        Corpus(parts.tokenizer, sample_sentences()),
        recorded=recorded_replies,
        schemas=parts.constraints,
        streams=RandomStreams(text=parts.streams("text"), calls=parts.streams("calls")),
    )
    model.tool_replies = parts.tool_replies
    model.strict_parsers = simulated_version(settings.api).rules(ChatRules).strict_parsers
    sources = []
    for extension in parts.extensions:
        decide = extension.reply()
        if decide is not None:
            sources.append(ReplySource(decide, model.scripted_reply))
    lengths = [extension.reply_length() for extension in parts.extensions]
    model.ask_first(sources, next(filter(None, lengths), None))
    return model
