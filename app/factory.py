"""Builds the rooms once and hands each what it needs."""

from __future__ import annotations

import logging
import os
import sys
from functools import cached_property
from random import Random

from flask import Flask, Request, Response
from flask.sessions import NullSession, SessionInterface, SessionMixin
from werkzeug.routing import MapAdapter, Rule

from app.api import chat, completions, health, metrics, models, tokens
from app.api.body import BodyLimits
from app.api.delivery import Delivery, ServerLoad
from app.api.door import Door
from app.api.errors import init_errors
from app.api.identity import Identity, pod_headers
from app.api.outbox import Outbox
from app.api.replies import Reply
from app.api.request_ids import init_request_ids
from app.api.routing import DirectAdapter, ExactRule, StaticRules, static_rules
from app.metrics.exposition import Exposition
from app.metrics.http import HttpMetrics
from app.metrics.recorder import Recorder
from app.protocol.model_limits import ModelLimits
from app.serving.service import Service
from app.simulation.latency import Latency
from app.simulation.live_clock import LiveClock
from app.simulation.pacer import Pacer
from app.simulation.performer import Simulation
from app.simulation.text import Phrasebook, sample_sentences
from app.tokenization import Tokenizer, TokenizerError, load_tokenizer
from config import ConfigError, Settings
from config.loader import load

log = logging.getLogger(__name__)

UNKNOWN_VOCABULARY = 2**31
"""Size assumed when a remote tokenizer does not tell its own."""


class NoSessions(SessionInterface):
    """Nobody logs in here."""

    def open_session(self, app: Flask, request: Request) -> NullSession:
        return NO_SESSION

    def save_session(self, app: Flask, session: SessionMixin, response: Response) -> None:
        """There is nothing to save."""


NO_SESSION = NullSession()


class Understudy(Flask):
    """The Flask application, with what the worker needs to know of it."""

    response_class = Reply
    url_rule_class: type[Rule] = ExactRule
    session_interface = NoSessions()
    service: Service

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Routes depend on path and method only, so nothing else of the environment is looked at."""
        if request is None:
            return super().create_url_adapter(request)
        scheme = request.environ["wsgi.url_scheme"]
        path = request.environ["PATH_INFO"].encode("latin-1").decode(errors="replace")
        return DirectAdapter(self.url_map, self._static_rules, scheme, path, request.method)

    @cached_property
    def _static_rules(self) -> StaticRules:
        return static_rules(self.url_map)

    def drain(self) -> None:
        """Admit no more requests; running ones go on (SIGTERM)."""
        self.service.drain()


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
    places = settings.scheduling.max_num_seqs
    recorder = Recorder(settings.model.served_names[0], settings.model.max_model_len, {})
    pacer = Pacer(clock)
    latency = Latency(settings.latency, places, lambda: service.running, latency_rng)
    phrasebook = Phrasebook(tokenizer, sample_sentences())
    performer = Simulation(settings.reply.mode, tokenizer, phrasebook, latency, pacer, clock, text_rng)
    service = Service(
        performer,
        recorder,
        clock,
        places,
        settings.scheduling.max_waiting_queue_length,
        settings.scheduling.max_num_queued_reqs,
    )

    app = Understudy("app", static_folder=None)
    app.url_map.merge_slashes = False
    app.service = service
    http = HttpMetrics(clock.now)
    http.init_app(app)
    init_errors(app)
    identity = Identity(settings.model, id_rng)
    init_request_ids(app, identity, settings.api.enable_request_id_headers)
    load = ServerLoad(settings.api.enable_server_load_tracking)
    delivery = Delivery(service, load, pod_headers(settings.server), Outbox(), settings.server.write_timeout)
    body = BodyLimits(settings.server.max_request_body_size_mb << 20, settings.server.read_timeout)
    served = models.ServedModels(
        settings.model.served_names, settings.model.model, settings.model.max_model_len
    )

    limits = ModelLimits(
        max_model_len=settings.model.max_model_len,
        vocab_size=tokenizer.vocab_size or UNKNOWN_VOCABULARY,
        max_logprobs=settings.api.max_logprobs,
    )
    door = Door(
        body,
        served,
        tokenizer,
        identity,
        delivery,
        limits,
        settings.api.enable_force_include_usage,
        settings.api.enable_prompt_tokens_details,
    )
    app.register_blueprint(chat.blueprint(door))
    app.register_blueprint(completions.blueprint(door))
    app.register_blueprint(models.blueprint(served, identity))
    app.register_blueprint(tokens.blueprint(body, served, tokenizer))
    ready = health.readiness(service, clock, settings.server.startup_duration)
    app.register_blueprint(health.blueprint(ready, load, settings.model.vllm_version))
    app.register_blueprint(metrics.blueprint(Exposition(recorder, http)))
    return app
