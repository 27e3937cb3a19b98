"""Builds the rooms once and hands each what it needs."""

from __future__ import annotations

import os
import socket
import sys

from app import ranks
from app.adapter_modules import adapters_of
from app.api import admin, chat, completions, fake_metrics, health, kv_events, loras, messages
from app.api import lifecycle as lifecycle_routes
from app.api import metrics, models, scale_out, tokens
from app.api.body import BodyLimits
from app.api.delivery import Delivery, ServerLoad
from app.api.door import Door
from app.api.errors import init_errors
from app.api.identity import Identity, pod_headers
from app.api.outbox import Outbox
from app.api.request_ids import init_request_ids
from app.api.translation import Translation
from app.application import Understudy
from app.handover import handed_over
from app.metrics.exposition import Exposition
from app.metrics.fake import FakeFamilies
from app.metrics.http import HttpMetrics
from app.metrics.recorder import Recorder
from app.protocol.model_limits import ModelLimits
from app.serving.adapters import Adapters
from app.serving.lifecycle import Lifecycle
from app.serving.residents import Residents
from app.serving.service import Service
from app.simulation.author import Author
from app.simulation.clock import Clock
from app.simulation.latency import Latency
from app.simulation.live_clock import LiveClock
from app.simulation.pacer import Pacer
from app.simulation.performer import Simulation
from app.simulation.streams import Streams
from app.simulation.text import Phrasebook, sample_sentences
from app.tokenization import Tokenizer, TokenizerError, load_tokenizer
from config import ConfigError, Settings
from config.live import LiveSettings
from config.loader import load
from config.settings import ServerSettings

UNKNOWN_VOCABULARY = 2**31
"""Size assumed when a remote tokenizer does not tell its own."""


def create_app(settings: Settings | None = None) -> Understudy:
    """Build the application from `settings`, or from the environment and the YAML file that it names.

    Nothing that a fork would lose is started here. A setting that cannot be served ends the process
    with one line and exit status 1, as a wrong one does.
    """
    try:
        settings = settings or handed_over(os.environ) or load((), os.environ)
        tokenizer = tokenizer_of(settings)
    except (ConfigError, TokenizerError) as error:
        sys.exit(f"error: {error}")
    return build(settings, tokenizer, ranks.rank_of(settings.server, os.environ))


def tokenizer_of(settings: Settings) -> Tokenizer:
    """The tokenizer that the settings ask for. TokenizerError when an explicit one cannot be loaded."""
    at = settings.tokenizer
    return load_tokenizer(
        model=settings.model.model,
        tokenizer=at.tokenizer,
        explicit=at.tokenizer is not None,
        force_dummy=at.force_dummy_tokenizer,
        render_url=at.render_url,
        render_timeout_s=at.render_timeout,
        hf_token=at.hf_token,
        chat_template=at.chat_template,
    )


def check_tokenizer(settings: Settings) -> None:
    """TokenizerError when the tokenizer cannot be loaded, or its service does not answer."""
    tokenizer_of(settings).encode("Ready?")


def build(settings: Settings, tokenizer: Tokenizer, rank: int = 0) -> Understudy:
    """Build the rooms, hand each what it needs, and open the doors."""
    clock, live = LiveClock(), LiveSettings(settings)
    server = ranks.served_by(settings.server, rank)
    streams = Streams(settings.reply.seed, rank)
    adapters = adapters_of(settings.lora, settings.model)
    recorder = _recorder(settings, rank)
    http = HttpMetrics(clock.now)
    service = _service(live, tokenizer, clock, recorder, streams, adapters)
    identity = Identity(settings.model, server.pod_ip or socket.gethostname(), streams("ids"))
    load = ServerLoad(settings.api.enable_server_load_tracking)
    door = _door(live, server, tokenizer, service, identity, load, streams, adapters)
    lifecycle = Lifecycle(service, recorder)
    fakes = FakeFamilies(
        settings.model.served_names[0],
        settings.model.max_model_len,
        {},
        settings.lora.max_loras,
        str(rank),
        clock=clock.now,
    )
    live.subscribe(fakes.follow)

    app = Understudy(service)
    http.init_app(app)
    init_errors(app)
    init_request_ids(app, identity, settings.api.enable_request_id_headers)
    ready = health.readiness(service, clock, settings.server.startup_duration)
    app.register_blueprint(chat.blueprint(door))
    app.register_blueprint(completions.blueprint(door))
    app.register_blueprint(messages.blueprint(door))
    app.register_blueprint(scale_out.blueprint(door, settings.api.enable_scale_out))
    app.register_blueprint(models.blueprint(door.models, identity))
    app.register_blueprint(tokens.blueprint(door.body, door.models, tokenizer))
    app.register_blueprint(health.blueprint(ready, load, settings.model.vllm_version))
    app.register_blueprint(metrics.blueprint(Exposition(recorder, http, fakes=fakes)))
    app.register_blueprint(kv_events.blueprint(ranks.count(server)))
    app.register_blueprint(admin.blueprint(live, lifecycle, service, door.body))
    app.register_blueprint(fake_metrics.blueprint(door.body, live))
    if settings.lora.allow_runtime_lora_updating:
        app.register_blueprint(loras.blueprint(door.body, door.models))
    if settings.server.server_dev_mode:
        sleeps = settings.api.enable_sleep_mode
        app.register_blueprint(lifecycle_routes.blueprint(lifecycle, sleeps, lambda: live.current.dump()))
    if settings.server.profiling:
        app.register_blueprint(lifecycle_routes.profiler())
    return app


def _recorder(settings: Settings, rank: int) -> Recorder:
    """Adapters are told of when there may be some."""
    lora, model = settings.lora, settings.model
    told = lora.enable_lora or lora.lora_modules or lora.allow_runtime_lora_updating
    return Recorder(
        model.served_names[0],
        model.max_model_len,
        {},
        str(rank),
        max_loras=lora.max_loras if told else None,
    )


def _service(
    live: LiveSettings,
    tokenizer: Tokenizer,
    clock: Clock,
    recorder: Recorder,
    streams: Streams,
    adapters: Adapters,
) -> Service:
    """The simulation behind its places."""
    settings, limits = live.current, live.current.scheduling
    pacer = Pacer(clock)
    latency = Latency(settings.latency, limits.max_num_seqs, lambda: service.running, streams("latency"))
    live.subscribe(lambda now: latency.change(now.latency))
    phrasebook = Phrasebook(tokenizer, sample_sentences())
    author = Author(settings, tokenizer, phrasebook, streams("text"), streams("calls"))
    live.subscribe(author.change)
    service = Service(
        Simulation(author, tokenizer, latency, pacer, clock),
        recorder,
        clock,
        limits.max_num_seqs,
        limits.max_waiting_queue_length,
        limits.max_num_queued_reqs,
        Residents(settings.lora.max_loras, adapters.__contains__),
        limits.scheduling_policy == "priority",
    )
    return service


def _door(
    live: LiveSettings,
    server: ServerSettings,
    tokenizer: Tokenizer,
    service: Service,
    identity: Identity,
    load: ServerLoad,
    streams: Streams,
    adapters: Adapters,
) -> Door:
    """What the generating API families share."""
    settings, model, api = live.current, live.current.model, live.current.api
    translation = Translation(settings, adapters, streams("images"))
    live.subscribe(translation.change)
    return Door(
        body=BodyLimits(server.max_request_body_size_mb << 20, server.read_timeout),
        models=models.ServedModels(model.served_names, model.model, model.max_model_len, adapters),
        tokenizer=tokenizer,
        identity=identity,
        delivery=Delivery(service, load, pod_headers(server), Outbox(), server.write_timeout),
        translation=translation,
        limits=ModelLimits(
            max_model_len=model.max_model_len,
            vocab_size=tokenizer.vocab_size or UNKNOWN_VOCABULARY,
            max_logprobs=api.max_logprobs,
            reasons=bool(settings.reply.reasoning_parser),
        ),
        force_usage=api.enable_force_include_usage,
        prompt_details=api.enable_prompt_tokens_details,
        encoder_only=model.mm_encoder_only,
        omni=model.omni,
    )
