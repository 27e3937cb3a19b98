"""Builds the rooms once and hands each what it needs."""

from __future__ import annotations

import os
import socket
import sys

from app.api import models, tokens
from app.api.admin import config as admin
from app.api.admin import fake_metrics, health, metrics
from app.api.admin import lifecycle as lifecycle_routes
from app.api.admin import lora as loras
from app.api.admin.peer_ranks import PeerRanks
from app.api.anthropic import routes as messages
from app.api.chat import route as chat
from app.api.completions import route as completions
from app.api.errors import init_errors
from app.api.generate import routes as scale_out
from app.api.identity import Identity
from app.api.kv import event_sources as kv_events
from app.api.pooling import routes as pooling
from app.api.responder import ServerLoad
from app.api.responses import routes as responses
from app.assembly import cache_of, door_of, fakes_of, publisher_of, publishing, service_of
from app.components import Components, dataset_settings
from app.dataset import DatasetError, prepare
from app.engine.lifecycle import Lifecycle
from app.metrics.exposition import Exposition, engine_families
from app.middleware.api_keys import init_access
from app.middleware.cors import init_cors
from app.middleware.faults import Faults, init_faults
from app.middleware.http_log import init_http_log
from app.middleware.http_metrics import HttpMetrics
from app.middleware.rate_limits import init_rate_limits
from app.middleware.request_ids import init_request_ids
from app.middleware.tracing import init_tracing
from app.server import ranks
from app.server.handover import handed_over
from app.tokenization import Tokenizer, TokenizerError, load_tokenizer
from app.tracing import check_tracing
from app.web.application import Understudy
from config import ConfigError, Settings
from config.loader import load


def create_app(settings: Settings | None = None) -> Understudy:
    """Build the application from `settings`, or from the environment and the YAML file that it names.

    Nothing that a fork would lose is started here. A setting that cannot be served ends the process
    with one line and exit status 1, as a wrong one does.
    """
    try:
        settings = settings or handed_over(os.environ) or load((), os.environ)
        check_tracing(settings.tracing)
        prepare(dataset_settings(settings))
        tokenizer = tokenizer_of(settings)
        if settings.kvindex.role == "indexer":
            from app.web.indexer import build_indexer  # with clients of databases that take time to import

            return build_indexer(settings, tokenizer)
        return build(settings, tokenizer, ranks.rank_of(settings.server, os.environ))
    except (ConfigError, TokenizerError, DatasetError) as error:
        sys.exit(f"error: {error}")


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
    """Build the rooms, hand each what it needs, and open the doors. ConfigError as `Components.of`."""
    components = Components.of(settings, tokenizer, rank)
    live, clock, server = components.live, components.clock, components.server
    http = HttpMetrics(clock.now)
    publishes = publishing(components)
    publisher = publisher_of(components, publishes)
    cache = cache_of(components, publisher)
    service = service_of(components, cache)
    identity = Identity(settings.model, server.pod_ip or socket.gethostname(), components.streams("ids"))
    load = ServerLoad(settings.api.enable_server_load_tracking)
    faults = Faults.of(live, components.streams("faults"), clock)
    door = door_of(components, service, identity, load, faults)
    lifecycle = Lifecycle(service, components.recorder, cache)
    siblings = PeerRanks(rank, [(k, url) for k, url in ranks.siblings(settings) if k != rank])
    fakes = fakes_of(components)

    app = Understudy(service)
    families = [engine_families(components.recorder, fakes)]
    app.services += [publisher] if publisher is not None else []
    if settings.kvindex.kv_index:
        from app.web.indexer import add_index

        families.append(add_index(app, live, tokenizer, publisher))
    http.init_app(app)
    init_http_log(app, live)
    init_errors(app)
    init_request_ids(app, identity, settings.api.enable_request_id_headers)
    init_tracing(app, settings.tracing, service, clock)
    init_cors(app, settings.access)
    init_access(app, live)
    init_rate_limits(app, live, service, clock)
    init_faults(app, faults)
    ready = health.readiness(service, clock, settings.server.startup_duration)
    if settings.model.task == "generate":
        app.register_blueprint(chat.blueprint(door))
        app.register_blueprint(completions.blueprint(door))
        app.register_blueprint(messages.blueprint(door))
        app.register_blueprint(responses.blueprint(door, settings.api.enable_responses_store))
        app.register_blueprint(scale_out.blueprint(door, settings.api.enable_scale_out))
    else:
        app.register_blueprint(pooling.blueprint(door, settings.model))
    app.register_blueprint(models.blueprint(door.models, identity))
    app.register_blueprint(tokens.blueprint(door.body, door.models, tokenizer))
    app.register_blueprint(health.blueprint(ready, load, settings.model.vllm_version))
    app.register_blueprint(metrics.blueprint(Exposition(families, http)))
    heard = publisher is not None
    app.register_blueprint(kv_events.blueprint(publishes, heard, server.ranks))
    app.register_blueprint(admin.blueprint(live, lifecycle, service, door.body, siblings))
    app.register_blueprint(fake_metrics.blueprint(door.body, live))
    if settings.lora.allow_runtime_lora_updating:
        app.register_blueprint(loras.blueprint(door.body, door.models))
    if settings.server.server_dev_mode:
        sleeps = settings.api.enable_sleep_mode
        app.register_blueprint(lifecycle_routes.blueprint(lifecycle, sleeps, lambda: live.current.dump()))
    if settings.server.profiling:
        app.register_blueprint(lifecycle_routes.profiler())
    return app
