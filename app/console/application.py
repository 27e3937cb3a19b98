"""Assembles the console; imported only when the console is enabled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from app.base.clock.clock import Clock
from app.base.clock.streams import Streams
from app.console import page, routes
from app.console.bars import Origin, RequestBars
from app.console.feed import Feed
from app.console.load import Generator
from app.console.observer import Observer
from app.engine.core.cache_manager import KVCacheManager
from app.engine.core.client import EngineClient
from app.engine.core.engine import Engine
from app.engine.core.lifecycle import Operations
from app.serving.api.admin.config import PeerRanks
from app.serving.flask.application import Understudy
from app.serving.http.body import BodyLimits
from app.serving.http.context import RequestContext
from app.serving.http.response import Response
from app.serving.middleware.stack import Middleware
from app.text import Tokenizer
from config import VERSION
from config.live import LiveSettings
from config.settings import ServerSettings

if TYPE_CHECKING:
    from app.engine.kvcache.publisher import Publisher

OURS = ("/admin", "/console")
"""Path prefixes that the console does not show."""


class ConsoleWatch(Middleware):
    """Shows each choice of each request as a bar, and requests refused before their first choice."""

    def __init__(self, bars: RequestBars) -> None:
        self._bars = bars

    def begin(self, context: RequestContext) -> None:
        if context.method == "POST" and not context.path.startswith(OURS):
            context.observers = (*context.observers, partial(self._bars.watch, Origin.of(context)))

    def end(self, context: RequestContext, response: Response) -> None:
        if response.status >= 400 and context.method == "POST" and not context.path.startswith(OURS):
            self._bars.refused(context, response.status)


class Console:
    """One rank's console: the engine's observer, and the middleware that watches requests."""

    def __init__(
        self,
        live: LiveSettings,
        server: ServerSettings,
        engine: EngineClient,
        lifecycle: Operations,
        clock: Clock,
        cache: KVCacheManager | None,
        publisher: Publisher | None,
    ) -> None:
        """`server`: the settings of this rank."""
        self._live, self._server, self._engine, self._cache = live, server, engine, cache
        self._lifecycle = lifecycle
        self._publishes = publisher is not None
        self.observer = Observer(engine, lifecycle, clock.now, time.time, cache, publisher)
        self.watch = ConsoleWatch(self.observer.bars)

    def add_to(
        self,
        app: Understudy,
        tokenizer: Tokenizer,
        siblings: PeerRanks,
        ranks: Sequence[int],
        body: BodyLimits,
        streams: Streams,
    ) -> None:
        """Adds the page and its routes to `app`."""
        observer = self.observer

        def server() -> dict[str, object]:
            scripts = any(route.path == "/admin/script" for route in app.routes)
            return self._described(siblings.own, ranks) | {"scripts": scripts}

        feed = Feed(observer, server)
        app.until_drained.append(feed.close)
        app.caches.append(lambda: {"console requests": observer.bars})
        generator = Generator(self._live, self._server, tokenizer, streams("console load"))
        app.until_drained.append(generator.end)
        observer.load = generator.summary
        app.add_routes("console", page.routes())
        own = routes.admin_routes(feed, observer, generator, tokenizer, self._live, siblings, body)
        actions = routes.action_routes(self._lifecycle, self._live.current.dump)
        app.add_routes("console_admin", [*own, *actions])

    def _described(self, rank: int, ranks: Sequence[int]) -> dict[str, object]:
        """Returns the server's description for a newly opened page."""
        settings, steps, cache = self._live.current, self.observer.steps, self._cache
        counted = settings.kvcache.kv_cache_size - 1 if steps.shared else 0
        first = self._server.port - (rank if len(ranks) > 1 else 0)
        return {
            "version": VERSION,
            "plays": settings.model.vllm_version,
            "model": settings.model.served_names[0],
            "task": settings.model.task,
            "max_model_len": settings.model.max_model_len,
            "rank": rank,
            "ranks": {str(each): first + place for place, each in enumerate(ranks)},
            "places": settings.scheduling.max_num_seqs,
            "shared_steps": steps.shared,
            "profile": settings.steps.profile if steps.shared else "",
            "budget": steps.budget,
            "blocks": counted if cache is None else cache.capacity,
            "numbered": cache is not None,
            "block_size": settings.kvcache.block_size,
            "adapter_slots": self._engine.lora.most if isinstance(self._engine, Engine) else 0,
            "publishes": self._publishes,
            "index": settings.kvindex.kv_index,
            "dev_mode": settings.server.server_dev_mode,
        }
