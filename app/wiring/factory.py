"""Builds the application:

makes each part of a server once, in the order in which they need one another.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from app.base import Bounded
from app.base.clock.clock import LiveClock, Streams, TimerWheel
from app.base.clock.pause import call_off_hub
from app.base.metrics.fake import FakeFamilies
from app.base.metrics.instruments import Exposition, Families
from app.base.metrics.recorder import Recorder
from app.core.extensions import Extension, ServerParts, enabled_extensions
from app.engine.core.batch import LoRASlots
from app.engine.core.engine import Engine
from app.engine.core.lifecycle import Lifecycle, WeightUpdates
from app.engine.core.request import Model
from app.engine.dataset import open_datasets
from app.engine.dataset import prepare as prepare_datasets
from app.engine.forms.schema import Schemas
from app.engine.kvcache.block_pool import Residency
from app.engine.kvcache.cache import KVCacheManager, store_of
from app.engine.kvcache.hashing import BlockHasher
from app.engine.kvcache.memo import Memo
from app.engine.lora import AdapterMemory, LoraResidency, adapters_of, rank_of
from app.engine.simulated.corpus import Corpus, sample_sentences
from app.engine.simulated.model import NullModel, SimulatedModel
from app.serving.api import anthropic, completions, invocations, models, pooling
from app.serving.api.admin import server as admin
from app.serving.api.admin import testing
from app.serving.api.chat import completions as chat
from app.serving.api.chat import prompt
from app.serving.api.generate import routes as generate
from app.serving.api.identity import Identity, pod_headers
from app.serving.api.pipeline import ChatRules, RequestPipeline
from app.serving.api.plain import plain_chats, plain_completions
from app.serving.api.responder import Responder, ServerLoad
from app.serving.api.responses import routes as responses
from app.serving.api.responses.store import ResponseStore
from app.serving.faults.injector import FaultAudit, FaultInjector
from app.serving.flask.application import Understudy
from app.serving.gunicorn import ranks
from app.serving.http.context import BodyLimits
from app.serving.http.errors import bad_request
from app.serving.http.response import json_response
from app.serving.http.route import Route, get
from app.serving.middleware import access, http_metrics
from app.serving.middleware.http_log import HttpLog
from app.serving.middleware.journal import Journal
from app.serving.middleware.rate_limits import RateLimits
from app.serving.middleware.stack import Middleware, MiddlewareStack, RequestIds
from app.serving.protocol.validation import ModelLimits
from app.text.base import Tokenizer, TokenizerError
from app.text.huggingface import load_tokenizer
from app.wiring.derived import cache_config, dataset_settings, publishing
from config import ConfigError, Settings
from config.loader import check_extras, load
from config.validation import LiveSettings

if TYPE_CHECKING:
    from app.console.application import Console
    from app.engine.core.delays import DelayLog
    from app.engine.core.lifecycle import Operations
    from app.engine.core.remote import RemoteEngine
    from app.engine.core.sequence import EngineClient
    from app.engine.core.wire import EngineProcessOptions
    from app.engine.kvcache.publisher import Publisher
    from app.plugins.registry import PluginRegistry
    from app.serving.api.sampling import RealModel
    from app.serving.api.script import ScriptResolver
    from app.serving.recording.library import Recording
    from app.serving.recording.recorder import Upstream
    from app.serving.recording.replay import Replay
    from app.serving.scripts.script_set import ScriptSet

UNKNOWN_VOCABULARY = 2**31
"""Assumed vocabulary size of a remote tokenizer that does not return one."""


def create_app(settings: Settings | None = None) -> Understudy:
    """Builds the application from `settings`, or from the environment and its YAML file.

    Starts nothing that a fork would lose. An invalid setting ends the process with one line and
    exit status
    1.
    """
    try:
        settings = settings or ranks.handed_over(os.environ) or load((), os.environ)
        check_extras(settings)
        prepare_datasets(dataset_settings(settings))
        tokenizer = tokenizer_of(settings)
        if settings.kvindex.role == "indexer":
            from app.wiring.indexer import build_indexer  # imports database clients, which are slow

            return build_indexer(settings, tokenizer)
        return build(settings, tokenizer, ranks.rank_of(settings.server, os.environ))
    except (ConfigError, TokenizerError) as error:
        sys.exit(f"error: {error}")


def engine_options(settings: Settings) -> EngineProcessOptions:
    """Returns the options of a real engine's process. ConfigError when it cannot run here."""
    from app.wiring import real_engine

    return real_engine.engine_options(settings, publishing(settings, settings.server, 0))


def tokenizer_of(settings: Settings) -> Tokenizer:
    """Loads the tokenizer of the settings. TokenizerError when an explicit one cannot be loaded."""
    if settings.engine.is_real and settings.tokenizer.tokenizer is None:
        from app.wiring.real_engine import model_tokenizer

        return model_tokenizer(settings)
    takes_media = False if settings.engine.is_real else settings.model.multimodal
    return load_tokenizer(settings.model.model, settings.tokenizer, takes_media)


def prepare(settings: Settings) -> None:
    """Downloads and checks the files of the settings, before workers start.

    Raises TokenizerError for a named tokenizer, DatasetError for a dataset, ConfigError for a
    script or an adapter, and for missing packages.
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
    if settings.replay.replay:
        # The workers repeat the warnings.
        recording, upstream = open_recording(settings, warns=False)
        recording.close()
        if upstream is not None:
            upstream.file.close()
    if settings.PLUGINS:
        build(settings, tokenizer_of(settings))  # validates the plugins' hooks once for all workers


def open_recording(settings: Settings, warns: bool = True) -> tuple[Recording, Upstream | None]:
    """Opens the recording of the settings, and the upstream of their targets, which adds to the
    file.

    `warns` logs a line for each part of the file that cannot be read.

    ConfigError for a file that cannot be read or written, and for a wrong target.
    """
    from app.serving.http.client import Target
    from app.serving.recording.exchange import RecordingError
    from app.serving.recording.library import Recording
    from app.serving.recording.recorder import Upstream
    from app.serving.recording.writer import RecordingFile

    replay = settings.replay
    upstream = None
    try:
        if replay.target:
            targets = Target.by_model(replay.target)
            urls = ", ".join(target.url for target in targets.values())
            file = RecordingFile(Path(replay.replay), urls, adds=True)
            upstream = Upstream(targets, file, replay.target_timeout)
        alike = replay.replay_miss == "nearest"
        return Recording(replay.replay, alike, grows=upstream is not None, warns=warns), upstream
    except RecordingError as error:
        raise ConfigError(f"setting replay: {error}") from None


def build(settings: Settings, tokenizer: Tokenizer, rank: int = 0) -> Understudy:
    """Builds the application of a rank, with its routes. Raises the ConfigErrors of all parts."""
    return Assembly(settings, tokenizer, rank).app


class Assembly:
    """The parts of one rank's server. `app` is the application with all of them."""

    def __init__(self, settings: Settings, tokenizer: Tokenizer, rank: int) -> None:
        self.live, self.clock, self.schemas = LiveSettings(settings), LiveClock(), Schemas()
        self.settings, self.tokenizer, self.rank = settings, tokenizer, rank
        self.server = ranks.served_by(settings.server, rank)
        """Server settings of this rank, with its own port."""
        self.streams = Streams(settings.reply.seed, rank)
        self.adapters, lora = adapters_of(settings.lora, settings.model), settings.lora
        copies = lora.max_cpu_loras or lora.max_loras
        self.adapter_memory = AdapterMemory(self.adapters, lora.max_loras, copies)
        self.datasets = open_datasets(dataset_settings(settings), tokenizer)
        self.recorder = self._recorder()
        self.publishes = publishing(settings, self.server, rank)
        self.cache, self.publisher = self._cache()
        self.plugins = self._plugins()
        self.remote: RemoteEngine | None = None
        self.real: RealModel | None = None
        self.engine, self.lifecycle = self._engine()
        self.delays = self._delays()
        self.load = ServerLoad(settings.api.enable_server_load_tracking)
        plugged = [] if self.plugins is None else self.plugins.faults()
        self.faults = FaultInjector(self.streams("faults"), self.clock.now, plugged)
        self.live.subscribe(self.faults.on_settings)
        self.scripts: ScriptSet | None = None
        self.can_script = not (settings.model.mm_encoder_only or settings.engine.is_real)
        if settings.scripts.script and self.can_script:
            self.open_scripts()
        host = settings.kvcache.kv_side_channel_host or self.server.pod_ip or socket.gethostname()
        self.identity = Identity(settings, host, self.streams("ids"))
        self.pipeline = self._pipeline()
        api, kept = settings.api, 1000 if settings.api.console or settings.scripts.script else 0
        self.keys = access.ApiKeys()
        entries = kept if api.journal is None else api.journal
        self.journal = Journal(entries, bears_key=self.keys.bears_key)
        self.replay, self.console = self._replay(), self._console()
        self.audit = FaultAudit(self.faults, self.clock.now)
        self.http_metrics, self.limits = (
            http_metrics.HttpMetrics(self.clock.now),
            RateLimits(self.clock),
        )
        self.middleware = self._middleware()
        prefix = self.server.root_path.rstrip("/")
        self.app = Understudy(self.engine, self.middleware, self.streams("request ids"), prefix)
        transfers = settings.server.weight_transfer and not settings.engine.is_real
        self.weights = WeightUpdates(
            settings.model.model, settings.model.tensor_parallel_size, transfers
        )
        self.extensions = self._extensions()
        self.peers = admin.PeerRanks(
            rank, [(k, url) for k, url in ranks.siblings(settings) if k != rank]
        )
        self._add_services()
        self._add_model_routes()
        self._add_server_routes()

    def _recorder(self) -> Recorder:
        settings, lora, kvcache = self.settings, self.settings.lora, self.settings.kvcache
        told = lora.enable_lora or lora.lora_modules or lora.allow_runtime_lora_updating
        latency = settings.latency
        fetching = latency.kv_cache_transfer_latency or latency.kv_cache_transfer_time_per_token
        return Recorder(
            settings.model.served_names[0],
            settings.model.max_model_len,
            cache_config(settings),
            str(self.rank),
            max_loras=lora.max_loras if told else None,
            block_times=kvcache.kv_cache_metrics,
            older_names=settings.metrics.simulator_metrics,
            transfers=bool(fetching or kvcache.kv_connector == "nixl"),
            steps=settings.steps.shared or settings.engine.is_real,
        )

    def _cache(self) -> tuple[KVCacheManager | None, Publisher | None]:
        """Builds the simulated KV cache, and the publisher of its events where one may receive
        them.

        An encoder has no cache, and a real engine has its own.
        """
        settings, at, told = self.settings, self.settings.kvcache, self.publishes
        if settings.model.mm_encoder_only or settings.engine.is_real or not at.enable_kvcache:
            return None, None
        publisher = None
        if (
            told.endpoint
            or told.replay_endpoint
            or settings.kvindex.kv_index
            or settings.server.speaks_grpc
        ):
            from app.engine.kvcache.publisher import (
                Publisher,
            )  # imports ZMQ, which other servers do not need

            publisher = Publisher(told)
        observer = None
        if at.kv_cache_metrics:
            rng, now = self.streams("residency"), self.clock.now
            observer = Residency(self.recorder, at.kv_cache_metrics_sample, rng, now)
        hasher = BlockHasher(
            at.prefix_caching_hash_algo, at.block_size, at.hash_seed, self.streams("hashes")
        )
        put = None if publisher is None else publisher.put
        store = store_of(at.kv_connector, at.block_size)
        known = self.recorder, self.adapters.adapter
        cache = KVCacheManager(at.kv_cache_size, hasher, *known, put, store, observer)
        return cache, publisher

    def _plugins(self) -> PluginRegistry | None:
        """Loads the plugins of this process. ConfigError for a plugin with wrong hooks."""
        if not self.settings.PLUGINS:
            return None
        from app.plugins.registry import PluginRegistry  # imports pluggy

        return PluginRegistry(
            self.settings.PLUGINS, lambda: self.live.current, self.streams, self.clock.now
        )

    def _engine(self) -> tuple[EngineClient, Operations]:
        settings = self.settings
        if settings.engine.is_real:
            from app.engine.core.remote import RemoteLifecycle
            from app.wiring.real_engine import real_model, remote_engine  # imports ZMQ

            self.remote = remote_engine(settings, self.tokenizer, self.recorder, self.clock)
            self.real = real_model(settings, self.tokenizer)
            return self.remote, RemoteLifecycle(self.remote)
        profile = cost = None
        if settings.steps.shared:
            from config.datasheet import chosen_profile  # imports YAML

            profile = chosen_profile(settings)
            cost = None if self.plugins is None else self.plugins.step_cost(profile)
        slots = LoRASlots(settings.lora.max_loras, self.adapters.__contains__, self.adapter_memory)
        shared, model = (self.recorder, self.clock, self.streams), self._model()
        engine = Engine(settings, model, *shared, slots, self.cache, profile, cost and cost[1])
        self.live.subscribe(engine.on_settings)
        return engine, Lifecycle(engine, self.recorder, self.cache)

    def _model(self) -> Model:
        if self.settings.model.task != "generate":
            return NullModel()
        tokenizer, draws = self.tokenizer, (self.streams("text"), self.streams("calls"))
        corpus = Corpus(tokenizer, sample_sentences())
        model = SimulatedModel(
            self.settings, tokenizer, corpus, self.datasets, self.schemas, *draws
        )
        if self.plugins is not None:
            model.ask_first(self.plugins.replies(model.scripted_reply), self.plugins.length())
        self.live.subscribe(model.on_settings)
        return model

    def open_scripts(self) -> ScriptSet:
        """Opens the scripts of the settings, or none:

        then rules may be added at run time. ApiError 400.
        """
        if not self.can_script:
            raise bad_request(
                "Rules for replies need the simulated engine, and a model that generates text."
            )
        call_off_hub(import_module, "app.serving.scripts.script_set")  # imports YAML and Jinja
        if self.scripts is None:
            from app.serving.scripts.script_set import open_scripts

            streams = self.streams("scripts")
            self.scripts = open_scripts(
                self.settings.scripts, self.schemas, streams, self.clock.now
            )
        return self.scripts

    def _resolver(self) -> ScriptResolver | None:
        if self.scripts is None or not self.scripts.rules:
            return None
        from app.serving.api.script import ScriptResolver

        return ScriptResolver(self.scripts, self.tokenizer, self.faults)

    def _use_scripts(self) -> None:
        """Asks scripts while there are rules; without them, plain requests take the fast path
        again.
        """
        self.pipeline.scripts = self._resolver()
        self.live.change({})

    def _pipeline(self) -> RequestPipeline:
        """Builds the pipeline of all generating API families."""
        settings, model, api = self.settings, self.settings.model, self.settings.api
        reasons, tools = bool(settings.reply.reasoning_parser), settings.tools
        limits = ModelLimits(
            max_model_len=model.max_model_len,
            vocab_size=self.tokenizer.vocab_size or UNKNOWN_VOCABULARY,
            max_logprobs=api.max_logprobs,
            reasons=reasons,
            parses=reasons or bool(tools.tool_call_parser and tools.enable_auto_tool_choice),
            max_new_tokens=None if self.real is None else self.real.defaults.max_new_tokens,
        )
        keep_alive_s = max(0.0, api.sse_keep_alive_interval)
        responder = Responder(self.engine, self.load, pod_headers(self.server), keep_alive_s)
        asks = (
            self.real is None
            and self.plugins is not None
            and self.plugins.implements("reply", "length")
        )
        pipeline = RequestPipeline(
            settings=settings,
            body=BodyLimits.of(self.server),
            models=models.ServedModels(
                model.served_names,
                model.model,
                model.max_model_len,
                self.adapters,
                model.takes_any_name,
            ),
            tokenizer=self.tokenizer,
            identity=self.identity,
            responder=responder,
            faults=self.faults,
            limits=limits,
            schemas=self.schemas,
            images=self.streams("images"),
            chat_rules=ChatRules.of(api),
            rank=self.rank,
            real=self.real,
            keeps_turns=bool(self.datasets) or asks,
            scripts=self._resolver(),
            asks_plugins=asks,
        )
        self.live.subscribe(pipeline.on_settings)
        return pipeline

    def _replay(self) -> Replay | None:
        if not self.settings.replay.replay:
            return None
        from app.serving.recording.replay import Replay

        clock = LiveClock()  # a clock has one alarm; the engine uses the other one
        recording, upstream = open_recording(self.settings)
        at, wheel, now, journal = self.settings.replay, TimerWheel(clock), clock.now, self.journal
        body, has_keys = BodyLimits.of(self.server), lambda: bool(self.live.current.access.api_key)
        more = at.replay_miss, upstream, has_keys
        return Replay(recording, body, self.faults, wheel, now, journal, *more)

    def _console(self) -> Console | None:
        if not self.settings.api.console:
            return None
        from app.console.application import Console  # other servers do not need it

        assert self.delays is not None
        engine, lifecycle, cache = self.engine, self.lifecycle, self.cache
        return Console(
            self.live,
            self.server,
            engine,
            lifecycle,
            self.clock,
            cache,
            self.publisher,
            self.delays,
        )

    def _delays(self) -> DelayLog | None:
        """Attaches a log of delays to the engine, where the console or traces will tell them."""
        if not (self.settings.api.console or self.settings.tracing.otlp_traces_endpoint):
            return None
        from app.engine.core.delays import DelayLog  # other servers do not need it

        return DelayLog().attach(self.engine)

    def _middleware(self) -> MiddlewareStack:
        """Builds all middleware, the outermost first."""
        settings, http_log = self.settings, HttpLog()
        for one in (http_log, self.keys, self.limits):
            self.live.subscribe(one.on_settings)
        request_ids = RequestIds(settings.api.enable_request_id_headers)
        stack: list[Middleware] = [self.http_metrics, http_log, self.journal, request_ids]
        if settings.tracing.otlp_traces_endpoint is not None:
            from app.base.tracing import tracing_to
            from app.serving.middleware.traces import Traces

            sender, make_tracer = tracing_to(settings.tracing)
            assert self.delays is not None
            stack.append(Traces(make_tracer, self.clock, self.delays, caches={"spans": sender}))
        stack += [access.Cors(settings.access), self.keys, self.limits]
        stack += [] if self.plugins is None else self.plugins.middleware()
        own_names = (self.server.host, self.server.pod_name)
        foreign_pages = access.ForeignPages(settings.access, own_names)
        self.live.subscribe(foreign_pages.on_settings)
        stack += [foreign_pages, http_metrics.LoadReports(self.recorder.figures)]
        more = self.audit, self.replay, self.console
        middleware = MiddlewareStack([*stack, *(each for each in more if each is not None)])
        self.live.subscribe(middleware.on_settings)
        return middleware

    def _extensions(self) -> list[Extension]:
        parts = ServerParts(
            settings=self.settings,
            live=self.live,
            server=self.server,
            pipeline=self.pipeline,
            lifecycle=self.lifecycle,
            weights=self.weights,
            routes=self._routes,
        )
        return [extension(parts) for extension in enabled_extensions(self.settings)]

    def _routes(self) -> Iterator[Route]:
        return self.app.routes

    def _add_extensions(self) -> None:
        for extension in self.extensions:
            for blueprint, routes in extension.routes().items():
                self.app.add_routes(blueprint, routes)
            self.app.services += extension.services()
            self.app.caches.append(extension.caches)

    def _add_services(self) -> None:
        """Adds the caches, and the parts that run with the server; gRPC last."""
        app, cache, publisher, scripts = self.app, self.cache, self.publisher, self.scripts
        kept: dict[str, Bounded] = {
            **{
                "rate limits": self.limits,
                "fault scripts": self.faults,
                "client audit": self.audit,
            },
            "schemas": self.schemas,
        }
        if (series := self.recorder.adapter_series) is not None:
            kept["adapter series"] = series
        if self.delays is not None:
            kept["delay log"] = self.delays
        app.caches.append(lambda: {} if self.scripts is None else {"script counters": self.scripts})
        app.caches += [lambda: kept, lambda: self.middleware.caches, lambda: self.tokenizer.caches]
        app.caches += [] if cache is None else [lambda: cache.caches]
        if publisher is not None:
            app.caches.append(lambda: publisher.caches)
            app.services.append(publisher)
        app.services += [] if self.remote is None else [self.remote]
        if self.replay is not None and self.replay.upstream is not None:
            app.services.append(self.replay.upstream.file)
        if scripts is not None:
            app.services.append(scripts)
            app.add_routes("script", admin.script_routes(scripts, self.peers))
        self.ready = admin.readiness(self.engine, self.clock, self.settings.server.startup_duration)
        if self.server.speaks_grpc:
            from app.serving.api.grpc.service import EngineService  # imports protobuf

            figures = self.recorder.figures
            service = EngineService(
                self.pipeline, self.lifecycle, self.ready, lambda: figures().cache_usage, publisher
            )
            app.rpc = service.methods()

    def _add_model_routes(self) -> None:
        """Adds vLLM's routes:

        families that generate text, families that pool, and control of the model.
        """
        app, settings, pipeline, body = self.app, self.settings, self.pipeline, self.pipeline.body
        api, server = settings.api, settings.server
        if settings.model.task == "generate":
            app.after_start.append(self.schemas.load)
            chats, texts = plain_chats(pipeline), plain_completions(pipeline)
            self.live.subscribe(chats.on_settings)
            self.live.subscribe(texts.on_settings)
            store, threads = (
                ResponseStore(api.enable_responses_store),
                Memo[str, bytes](64 << 20),
            )
            memos = {"plain chats": chats.known_prompts, "plain prompts": texts.known_prompts}
            app.caches.append(lambda: {**memos, "responses": store, "threads": threads})
            app.add_routes("chat", chat.routes(pipeline, chats))
            app.add_routes("completions", completions.routes(pipeline, texts))
            app.add_routes("anthropic", anthropic.routes(pipeline, threads))
            app.add_routes("responses", responses.routes(pipeline, store))
            routes = generate.routes(
                pipeline,
                api.enable_scale_out or api.tokens_only,
                self.weights,
                server.server_dev_mode,
            )
            app.add_routes("generate", routes)
        if pooling_routes := pooling.routes(pipeline, settings.model):
            app.add_routes("pooling", pooling_routes)
        app.add_routes("invocations", invocations.invocation_routes(body, lambda: app.routes))
        app.add_routes("models", models.routes(pipeline.models, self.identity))
        app.add_routes("tokens", prompt.routes(pipeline, api.enable_tokenizer_info_endpoint))
        if settings.lora.allow_runtime_lora_updating:
            app.add_routes("lora", models.adapter_routes(body, pipeline.models))

    def _add_server_routes(self) -> None:
        """Adds health, metrics, and what operates the server; plugins and the page of all routes
        last.
        """
        app, settings, server, replay = self.app, self.settings, self.server, self.replay
        plugins, body = self.plugins, self.pipeline.body
        health = admin.health_routes(lambda: self.engine.healthy, self.ready, self.load)
        exposition = Exposition(
            [*self._families(), self.http_metrics.text], self.http_metrics.process_text
        )
        first = f"http://{server.pod_ip or socket.gethostname()}:{settings.server.port}"
        app.add_routes("health", health)
        app.add_routes("metrics", admin.metrics_routes(exposition))
        if settings.engine.is_real:
            app.add_routes("stats", admin.statistics_routes(self.recorder.figures))
        report = None if plugins is None else plugins.report
        told = self.publishes, self.publisher is not None, server, first
        app.add_routes("reports", admin.report_routes(self.audit, report, *told))
        app.add_routes(
            "admin", admin.routes(self.live, self.lifecycle, self.engine, body, self.peers)
        )
        app.add_routes("journal", testing.journal_routes(self.journal, self.peers))
        rules = testing.rule_routes(self.open_scripts, self._use_scripts, body, self.peers)
        app.add_routes("rules", rules)
        app.add_routes("memory", admin.memory_routes(app.caches))
        if replay is not None:
            app.add_routes(
                "replay", [get("/admin/replay", lambda context: json_response(replay.report()))]
            )
        app.add_routes("fake_metrics", admin.fake_metrics_routes(body, self.live))
        if self.console is not None:
            numbers = list(server.ranks)
            self.console.add_to(app, self.tokenizer, self.peers, numbers, body, self.streams)
        self._add_extensions()
        for name, routes in () if plugins is None else plugins.routes(lambda: app.routes):
            app.add_routes(name, routes)

    def _families(self) -> list[Families]:
        """Returns the engine's families, which fake metrics may replace, and those of other parts."""
        settings, rank, families = self.settings, str(self.rank), list[Families]()
        lora, name, adapter = settings.lora, settings.model.served_names[0], self.adapters.adapter
        if not settings.metrics.disable_log_stats:
            length, config, now = (
                settings.model.max_model_len,
                cache_config(settings),
                self.clock.now,
            )
            fakes = FakeFamilies(name, length, config, lora.max_loras, rank, clock=now)
            self.live.subscribe(fakes.on_settings)
            families.append(lambda: (fakes if fakes.active else self.recorder).render())
        if lora.lora_residency_metrics:
            labels = {"model_name": name, "engine": rank}
            found = lambda name: rank_of(adapter(name).path) or lora.max_lora_rank  # noqa: E731
            residency = LoraResidency(self.adapter_memory, found, labels, time.time)
            families.append(residency.render)
        for extension in self.extensions:
            families += extension.metrics()
        families += [] if self.plugins is None else self.plugins.families()
        if settings.kvindex.kv_index:
            from app.wiring.indexer import add_index

            families.append(
                add_index(self.app, self.live, self.tokenizer, self.publisher, self.remote)
            )
        return families
