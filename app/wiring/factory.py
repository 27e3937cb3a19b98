"""Builds the application: makes each component once, and connects them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.base.clock.clock import Clock
from app.base.metrics.instruments import Exposition
from app.engine.core.lifecycle import Lifecycle, Operations, WeightUpdates
from app.engine.dataset import DatasetError
from app.engine.dataset import prepare as prepare_datasets
from app.engine.lora import adapters_of
from app.serving.api import anthropic, completions, invocations, label_reads, models, pooling, tokens
from app.serving.api.admin import config as admin
from app.serving.api.admin import lifecycle as lifecycle_routes
from app.serving.api.admin import reports
from app.serving.api.admin.config import PeerRanks
from app.serving.api.chat import completions as chat
from app.serving.api.generate import routes as generate
from app.serving.api.identity import Identity
from app.serving.api.openapi import document as openapi
from app.serving.api.plain import plain_chats, plain_completions
from app.serving.api.responder import ServerLoad
from app.serving.api.responses import routes as responses
from app.serving.api.responses.store import ResponseStore
from app.serving.faults.injector import AuditTrail, FaultAudit, FaultInjector
from app.serving.flask.application import Understudy
from app.serving.gunicorn import ranks
from app.serving.gunicorn.ranks import handed_over
from app.serving.http.response import json_response
from app.serving.http.route import get
from app.serving.middleware.access import ApiKeys, Cors, ForeignPages
from app.serving.middleware.http_log import HttpLog
from app.serving.middleware.http_metrics import HttpMetrics, LoadReports
from app.serving.middleware.rate_limits import RateLimits
from app.serving.middleware.stack import Middleware, MiddlewareStack, RequestIds
from app.text import Tokenizer, TokenizerError, load_tokenizer
from app.wiring.assembly import (
    Components,
    build_pipeline,
    cache_of,
    caches_of,
    check_replay,
    dataset_settings,
    engine_of,
    families_of,
    plugins_of,
    publishing,
    replay_of,
    scripts_of,
)
from config import ConfigError, Settings
from config.live import LiveSettings
from config.loader import check_extras, load

if TYPE_CHECKING:
    from app.engine.core.client import EngineClient
    from app.engine.core.wire import EngineProcessOptions
    from app.engine.kvcache.publisher import Publisher
    from app.serving.api.pipeline import RequestPipeline
    from app.serving.http.rpc import RpcService


def create_app(settings: Settings | None = None) -> Understudy:
    """Builds the application from `settings`, or from the environment and its YAML file.

    Starts nothing that a fork would lose. An invalid setting ends the process with one line and exit status
    1.
    """
    try:
        settings = settings or handed_over(os.environ) or load((), os.environ)
        check_extras(settings)
        prepare_datasets(dataset_settings(settings))
        tokenizer = tokenizer_of(settings)
        if settings.kvindex.role == "indexer":
            from app.serving.flask.indexer import build_indexer  # imports database clients, which are slow

            return build_indexer(settings, tokenizer)
        return build(settings, tokenizer, ranks.rank_of(settings.server, os.environ))
    except (ConfigError, TokenizerError, DatasetError) as error:
        sys.exit(f"error: {error}")


def engine_options(settings: Settings) -> EngineProcessOptions:
    """Returns the options of a real engine's process. ConfigError when it cannot run here."""
    from app.wiring import real_engine

    return real_engine.engine_options(settings)


def tokenizer_of(settings: Settings) -> Tokenizer:
    """Loads the tokenizer of the settings. TokenizerError when an explicit one cannot be loaded."""
    if settings.engine.is_real and settings.tokenizer.tokenizer is None:
        from app.wiring.real_engine import model_tokenizer

        return model_tokenizer(settings)
    takes_media = False if settings.engine.is_real else settings.model.multimodal
    return load_tokenizer(settings.model.model, settings.tokenizer, takes_media)


def prepare(settings: Settings) -> None:
    """Downloads and checks the files of the settings, before workers start.

    Raises TokenizerError for a named tokenizer, DatasetError for a dataset, ConfigError for a script or an
    adapter, and for missing packages.
    """
    check_extras(settings)
    named = settings.tokenizer
    if named.tokenizer or named.render_url or named.chat_template or settings.engine.is_real:
        tokenizer_of(settings).encode("Ready?")
    adapters_of(settings.lora, settings.model)
    prepare_datasets(dataset_settings(settings))
    if settings.scripts.script:
        from app.serving.scripts.script_set import check_scripts

        check_scripts(settings.scripts)
    check_replay(settings.replay)
    if settings.PLUGINS:
        build(settings, tokenizer_of(settings))  # validates the plugins' hooks once for all workers


def build(settings: Settings, tokenizer: Tokenizer, rank: int = 0) -> Understudy:
    """Builds and connects the components, and adds the routes. Raises the ConfigErrors of all components."""
    components = Components(settings, tokenizer, rank)
    live, clock, server, streams = components.live, components.clock, components.server, components.streams
    publishes = publishing(settings, server, rank)
    cache, publisher = cache_of(components, publishes)
    plugins = plugins_of(components)
    engine: EngineClient
    lifecycle: Operations
    remote, real = None, None
    if settings.engine.is_real:
        from app.engine.core.remote import RemoteLifecycle
        from app.wiring.real_engine import real_model, remote_engine  # imports ZMQ

        engine = remote = remote_engine(components)
        lifecycle, real = RemoteLifecycle(remote), real_model(components)
    else:
        engine = simulated = engine_of(components, cache, plugins)
        lifecycle = Lifecycle(simulated, components.recorder, cache)
    load = ServerLoad(settings.api.enable_server_load_tracking)
    faults = FaultInjector(streams("faults"), clock.now, [] if plugins is None else plugins.faults())
    live.subscribe(faults.on_settings)
    scripts, identity = scripts_of(components), identity_of(components)
    asked = plugins is not None and not settings.engine.is_real and plugins.implements("reply", "length")
    pipeline = build_pipeline(components, engine, identity, load, faults, scripts, real, asked)
    replay, audit = replay_of(components, faults), FaultAudit(faults, AuditTrail(), clock.now)
    limits, http_metrics, console = RateLimits(clock), HttpMetrics(clock.now), None
    if settings.api.console:
        from app.console.application import Console  # other servers do not need it

        console = Console(live, server, engine, lifecycle, clock, cache, publisher)
    innermost: list[Middleware] = [] if plugins is None else plugins.middleware()
    innermost += [LoadReports(components.recorder.figures), audit]
    innermost += [*([] if replay is None else [replay]), *([] if console is None else [console.watch])]
    middleware = middleware_of(settings, live, clock, http_metrics, limits, innermost)
    app = Understudy(engine, middleware, streams("request ids"), server.root_path.rstrip("/"))

    app.caches.append(lambda: {"rate limits": limits, "fault scripts": faults, "client audit": audit.trail})
    app.caches += [lambda: middleware.caches, *caches_of(components, cache, publisher)]
    app.services += [] if publisher is None else [publisher]
    app.services += [] if remote is None else [remote]
    families = [*families_of(components), *([] if plugins is None else plugins.families())]
    peers = PeerRanks(rank, [(k, url) for k, url in ranks.siblings(settings) if k != rank])
    if scripts is not None:
        app.caches.append(lambda: {"script counters": scripts})
        app.services.append(scripts)
        app.add_routes("script", admin.script_routes(scripts, peers))
    if settings.kvindex.kv_index:
        from app.serving.flask.indexer import add_index

        families.append(add_index(app, live, tokenizer, publisher, remote))
    ready = reports.readiness(engine, clock, settings.server.startup_duration)
    if server.speaks_grpc:
        app.rpc = rpc_of(components, pipeline, engine, lifecycle, ready, publisher)
    add_api(app, components, pipeline, identity, lifecycle)
    exposition = Exposition([*families, http_metrics.text], http_metrics.process_text)
    version = settings.model.vllm_version
    app.add_routes("health", reports.health_routes(lambda: engine.healthy, ready, load, version))
    app.add_routes("metrics", reports.metrics_routes(exposition))
    if settings.engine.is_real:
        app.add_routes("stats", reports.statistics_routes(components.recorder.figures))
    app.add_routes("kv_events", reports.publisher_routes(publishes, publisher is not None, server.ranks))
    first = f"http://{server.pod_ip or socket.gethostname()}:{settings.server.port}"
    app.add_routes("bootstrap", reports.bootstrap_routes(first, server.data_parallel_size))
    app.add_routes("admin", admin.routes(live, lifecycle, engine, pipeline.body, peers))
    app.add_routes("memory", reports.memory_routes(app.caches))
    app.add_routes("verdict", reports.verdict_routes(audit.report, audit.restart))
    if replay is not None:
        app.add_routes("replay", [get("/admin/replay", lambda context: json_response(replay.report()))])
    app.add_routes("fake_metrics", admin.fake_metrics_routes(pipeline.body, live))
    if console is not None:
        console.add_to(app, tokenizer, peers, list(server.ranks), pipeline.body, streams)
    app.add_routes("plugins", reports.plugin_routes(None if plugins is None else plugins.report))
    for name, routes in () if plugins is None else plugins.routes(lambda: app.routes):
        app.add_routes(name, routes)
    plays = {"plays": f"vLLM {version}", "models": settings.model.served_names}
    app.add_routes("root", openapi.root_routes(lambda: app.routes, plays))
    if not settings.api.disable_fastapi_docs:
        title = settings.model.served_names[0]
        app.add_routes("openapi", openapi.document_routes(lambda: app.routes, app.prefix, title))
    return app


def identity_of(components: Components) -> Identity:
    settings, server = components.settings, components.server
    host = settings.kvcache.kv_side_channel_host or server.pod_ip or socket.gethostname()
    return Identity(settings, host, components.streams("ids"))


def add_api(
    app: Understudy,
    components: Components,
    pipeline: RequestPipeline,
    identity: Identity,
    lifecycle: Operations,
) -> None:
    """Adds vLLM's routes: families that generate text, families that pool, and control of the model."""
    settings, live, body = components.settings, components.live, pipeline.body
    api, server, ranks = settings.api, settings.server, components.server.data_parallel_size
    transfers = server.weight_transfer and not settings.engine.is_real
    weights = WeightUpdates(settings.model.model, settings.model.tensor_parallel_size, transfers)
    if settings.model.task == "generate":
        app.after_start.append(components.schemas.load)
        chats, texts = plain_chats(pipeline), plain_completions(pipeline)
        live.subscribe(chats.on_settings)
        live.subscribe(texts.on_settings)
        store, threads = ResponseStore(api.enable_responses_store), anthropic.ThreadStore()
        memos = {"plain chats": chats.known, "plain prompts": texts.known}
        app.caches.append(lambda: {**memos, "responses": store, "threads": threads})
        scale_out, aborts = api.enable_scale_out, server.server_dev_mode
        app.add_routes("chat", chat.routes(pipeline, chats))
        app.add_routes("completions", completions.routes(pipeline, texts))
        app.add_routes("anthropic", anthropic.routes(pipeline, threads))
        app.add_routes("responses", responses.routes(pipeline, store))
        app.add_routes("generate", generate.routes(pipeline, scale_out, weights, aborts))
        app.add_routes("generative_scoring", label_reads.routes(pipeline))
        app.add_routes("elastic", lifecycle_routes.elastic_routes(body, ranks))
    if pooling_routes := pooling.routes(pipeline, settings.model):
        app.add_routes("pooling", pooling_routes)
    app.add_routes("decisions", label_reads.decision_routes(pipeline, settings.model))
    app.add_routes("invocations", invocations.routes(body, lambda: app.routes))
    app.add_routes("models", models.routes(pipeline.models, identity))
    app.add_routes("tokens", tokens.routes(pipeline, api.enable_tokenizer_info_endpoint))
    if settings.lora.allow_runtime_lora_updating:
        app.add_routes("lora", models.adapter_routes(body, pipeline.models))
    if server.server_dev_mode:
        told = lifecycle_routes.routes(lifecycle, api.enable_sleep_mode, lambda: live.current.dump())
        app.add_routes("lifecycle", told)
        app.add_routes("weights", lifecycle_routes.weight_routes(weights, body, ranks))
    if server.profiling:
        app.add_routes("profiler", lifecycle_routes.profiler(body))


def rpc_of(
    components: Components,
    pipeline: RequestPipeline,
    engine: EngineClient,
    lifecycle: Operations,
    is_ready: Callable[[], bool],
    publisher: Publisher | None,
) -> RpcService:
    from app.serving.api.grpc.service import ServerFacts, rpc_service  # imports protobuf

    facts = ServerFacts(
        lambda: components.settings,
        engine,
        lifecycle,
        components.tokenizer,
        components.rank,
        lambda: components.recorder.figures().cache_usage,
        components.clock.now(),
    )
    return rpc_service(pipeline, facts, is_ready, publisher)


def middleware_of(
    settings: Settings,
    live: LiveSettings,
    clock: Clock,
    http_metrics: HttpMetrics,
    limits: RateLimits,
    innermost: Sequence[Middleware],
) -> MiddlewareStack:
    """Builds all middleware, the outermost first."""
    http_log, keys, traces = HttpLog(), ApiKeys(), list[Middleware]()
    for one in (http_log, keys, limits):
        live.subscribe(one.on_settings)
    if settings.tracing.otlp_traces_endpoint is not None:
        from app.base.tracing import tracing_to
        from app.serving.middleware.traces import Traces

        sender, make_tracer = tracing_to(settings.tracing)
        traces.append(Traces(make_tracer, clock, caches={"spans": sender}))
    request_ids = RequestIds(settings.api.enable_request_id_headers)
    outer = [http_metrics, http_log, request_ids, *traces, Cors(settings.access), keys, limits]
    middleware = MiddlewareStack([*outer, *innermost, ForeignPages(settings.access)])
    live.subscribe(middleware.on_settings)
    return middleware
