"""Builds the rooms once and hands each what it needs."""

from __future__ import annotations

import os
import sys
from random import Random

from app.api import chat, completions, health, metrics, models, tokens
from app.api.body import BodyLimits
from app.api.delivery import Delivery, ServerLoad
from app.api.door import Door
from app.api.errors import init_errors
from app.api.identity import Identity, pod_headers
from app.api.outbox import Outbox
from app.api.request_ids import init_request_ids
from app.application import Understudy
from app.metrics.exposition import Exposition
from app.metrics.http import HttpMetrics
from app.metrics.recorder import Recorder
from app.protocol.model_limits import ModelLimits
from app.serving.service import Service
from app.simulation.clock import Clock
from app.simulation.latency import Latency
from app.simulation.live_clock import LiveClock
from app.simulation.pacer import Pacer
from app.simulation.performer import Simulation
from app.simulation.text import Phrasebook, sample_sentences
from app.tokenization import Tokenizer, TokenizerError, load_tokenizer
from config import ConfigError, Settings
from config.loader import load

UNKNOWN_VOCABULARY = 2**31
"""Size assumed when a remote tokenizer does not tell its own."""


def create_app(settings: Settings | None = None) -> Understudy:
    """Build the application from `settings`, or from the environment and the YAML file that it names.

    Nothing that a fork would lose is started here. A setting that cannot be served ends the process
    with one line and exit status 1, as a wrong one does.
    """
    try:
        settings = settings or load((), os.environ)
        tokenizer = tokenizer_of(settings)
    except (ConfigError, TokenizerError) as error:
        sys.exit(f"error: {error}")
    return build(settings, tokenizer)


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


def build(settings: Settings, tokenizer: Tokenizer) -> Understudy:
    """Build the rooms, hand each what it needs, and open the doors."""
    # Named streams of randomness, so that one feature's draws do not shift another's.
    seeds = Random(settings.reply.seed)
    text_rng, latency_rng, id_rng = (Random(seeds.getrandbits(64)) for _ in range(3))
    clock = LiveClock()
    recorder = Recorder(settings.model.served_names[0], settings.model.max_model_len, {})
    http = HttpMetrics(clock.now)
    service = _service(settings, tokenizer, clock, recorder, text_rng, latency_rng)
    identity = Identity(settings.model, id_rng)
    load = ServerLoad(settings.api.enable_server_load_tracking)
    door = _door(settings, tokenizer, service, identity, load)

    app = Understudy(service)
    http.init_app(app)
    init_errors(app)
    init_request_ids(app, identity, settings.api.enable_request_id_headers)
    ready = health.readiness(service, clock, settings.server.startup_duration)
    app.register_blueprint(chat.blueprint(door))
    app.register_blueprint(completions.blueprint(door))
    app.register_blueprint(models.blueprint(door.models, identity))
    app.register_blueprint(tokens.blueprint(door.body, door.models, tokenizer))
    app.register_blueprint(health.blueprint(ready, load, settings.model.vllm_version))
    app.register_blueprint(metrics.blueprint(Exposition(recorder, http)))
    return app


def _service(
    settings: Settings,
    tokenizer: Tokenizer,
    clock: Clock,
    recorder: Recorder,
    text_rng: Random,
    latency_rng: Random,
) -> Service:
    """The simulation behind its places."""
    limits = settings.scheduling
    pacer = Pacer(clock)
    latency = Latency(settings.latency, limits.max_num_seqs, lambda: service.running, latency_rng)
    phrasebook = Phrasebook(tokenizer, sample_sentences())
    performer = Simulation(settings.reply.mode, tokenizer, phrasebook, latency, pacer, clock, text_rng)
    service = Service(
        performer,
        recorder,
        clock,
        limits.max_num_seqs,
        limits.max_waiting_queue_length,
        limits.max_num_queued_reqs,
    )
    return service


def _door(
    settings: Settings, tokenizer: Tokenizer, service: Service, identity: Identity, load: ServerLoad
) -> Door:
    """What the generating API families share."""
    server, model, api = settings.server, settings.model, settings.api
    return Door(
        body=BodyLimits(server.max_request_body_size_mb << 20, server.read_timeout),
        models=models.ServedModels(model.served_names, model.model, model.max_model_len),
        tokenizer=tokenizer,
        identity=identity,
        delivery=Delivery(service, load, pod_headers(server), Outbox(), server.write_timeout),
        limits=ModelLimits(
            max_model_len=model.max_model_len,
            vocab_size=tokenizer.vocab_size or UNKNOWN_VOCABULARY,
            max_logprobs=api.max_logprobs,
        ),
        force_usage=api.enable_force_include_usage,
        prompt_details=api.enable_prompt_tokens_details,
    )
