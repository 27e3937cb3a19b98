"""The console's assembly and its routes below /admin; imported only when the console is enabled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from reprlib import Repr
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from app.base.clock.clock import Clock
from app.base.clock.streams import Streams
from app.console import page
from app.console.bars import Bar, Origin, RequestBars
from app.console.feed import Feed
from app.console.load import Generator, LoadPlan
from app.console.observer import Observer
from app.engine.core.cache_manager import KVCacheManager
from app.engine.core.engine import Engine
from app.engine.core.lifecycle import Operations
from app.engine.core.request import EngineRequest
from app.engine.core.sequence import EngineClient
from app.serving.api.admin.config import PeerRanks
from app.serving.api.admin.lifecycle import routes as lifecycle_routes
from app.serving.flask.application import Understudy
from app.serving.http.body import BodyLimits
from app.serving.http.context import RequestContext
from app.serving.http.errors import malformed, not_found
from app.serving.http.response import EVENT_STREAM, Response, json_response
from app.serving.http.route import Route, get, post
from app.serving.middleware.stack import Middleware
from app.text.base import Tokenizer
from config import VERSION, VLLM_VERSION
from config.live import LiveSettings
from config.settings import ServerSettings, Setting

if TYPE_CHECKING:
    from app.engine.kvcache.publisher import Publisher

OURS = ("/admin", "/console")
"""Path prefixes that the console does not show."""
ROOT = "/admin/console"
SHOWN_TOKENS = 4096
"""Most prompt tokens that are shown, from the start."""
SHOWN_CHARACTERS = 20_000
SHOWN_SETTING = 1000
SHOWN_ITEMS = 20
"""Most items shown of a list or mapping in a setting."""
UNSHOWN = frozenset(
    ("request_id", "index", "prompt_ids", "echo_text", "turns", "arrival_s", "observers")
    + ("media", "tool_calls", "adapter")
)
"""Request fields that are no settings, or are shown elsewhere."""
ACTIONS = ("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache")


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
    """One rank's console: the engine's observer, the middleware that watches requests, and the routes."""

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
        self._tokenizer, self._siblings, self._ranks, self._body = tokenizer, siblings, ranks, body
        self._app = app
        self._feed = Feed(self.observer, self._described)
        self._generator = Generator(self._live, self._server, tokenizer, streams("console load"))
        self.observer.load = self._generator.summary
        app.until_drained += [self._feed.close, self._generator.end]
        app.caches.append(lambda: {"console requests": self.observer.bars})
        app.add_routes("console", page.routes())
        own = [
            get(f"{ROOT}/stream", self._stream),
            get(f"{ROOT}/figures", self._figures),
            get(f"{ROOT}/requests/{{number}}", self._request),
            get(f"{ROOT}/knobs", self._knobs),
            post(f"{ROOT}/load", self._begin_load),
            Route(methods=("DELETE",), path=f"{ROOT}/load", handle=self._end_load),
        ]
        known = {
            route.path: route for route in lifecycle_routes(self._lifecycle, True, self._live.current.dump)
        }
        actions = [post(f"{ROOT}{path}", known[path].handle) for path in ACTIONS]
        app.add_routes("console_admin", [*own, *actions])

    def _described(self) -> dict[str, object]:
        settings, steps, cache = self._live.current, self.observer.steps, self._cache
        counted = settings.kvcache.kv_cache_size - 1 if steps.shared else 0
        rank = self._siblings.own
        first = self._server.port - (rank if len(self._ranks) > 1 else 0)
        return {
            "version": VERSION,
            "plays": VLLM_VERSION,
            "model": settings.model.served_names[0],
            "task": settings.model.task,
            "max_model_len": settings.model.max_model_len,
            "rank": rank,
            "ranks": {str(each): first + place for place, each in enumerate(self._ranks)},
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
            "scripts": any(route.path == "/admin/script" for route in self._app.routes),
        }

    # Routes below /admin; their docstrings are in GET /openapi.json.

    def _stream(self, context: RequestContext) -> Response:
        """Server-sent events: a picture, then four frames a second."""
        return Response(self._feed.open(context.connection), 200, {"Cache-Control": "no-store"}, EVENT_STREAM)

    def _figures(self, context: RequestContext) -> Response:
        """The figures of this rank; with `?ranks=all`, of each rank."""
        return json_response(self._siblings.answers(context, self.observer.summary()))

    def _request(self, context: RequestContext) -> Response:
        """Prompt, settings, tokens and blocks of the choice with this number."""
        number = context.params["number"]
        bar = self.observer.bars.of(int(number)) if number.isdecimal() and len(number) < 16 else None
        if bar is None:
            raise not_found(f"No request {number[:20]} is known any more.")
        return json_response(describe(bar, self._tokenizer))

    def _knobs(self, context: RequestContext) -> Response:
        """The settings that may change, as POST /admin/config takes them."""
        return json_response(
            [knob_of(row, self._live) for row in self._live.current.table.rows if row.about.live]
        )

    def _begin_load(self, context: RequestContext) -> Response:
        """Starts to send requests to this server, in place of any earlier plan."""
        try:
            plan = msgspec.json.decode(self._body.read(context), type=LoadPlan)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise malformed(f"body: {error}", "body") from None
        self._generator.begin(plan)
        return json_response(self._generator.summary())

    def _end_load(self, context: RequestContext) -> Response:
        """Ends sending requests, and cuts off the running ones."""
        self._generator.end()
        return json_response(self._generator.summary() or {})


def describe(bar: Bar, tokenizer: Tokenizer) -> dict[str, object]:
    """Returns all known facts of a choice; long texts are cut."""
    request, sequence = bar.request, bar.sequence
    settings = {
        field.name: value
        for field in fields(EngineRequest)
        if field.name not in UNSHOWN and (value := getattr(request, field.name)) != field.default
    }
    prompt = tokenizer.decode(list(request.prompt_ids[:SHOWN_TOKENS]), skip_special_tokens=False)
    return {
        "number": bar.number,
        "request_id": request.request_id[:SHOWN_SETTING],
        "choice": request.index,
        **msgspec.to_builtins(bar.origin),
        "prompt": prompt[:SHOWN_CHARACTERS],
        "prompt_tokens": len(request.prompt_ids),
        "reply": "" if sequence is None else sequence.text[:SHOWN_CHARACTERS],
        "tokens": bar.tokens if sequence is None else sequence.tokens,
        "blocks": [] if sequence is None or sequence.over else sequence.block_numbers(0),
        "preemptions": bar.preemptions,
        "outcome": None if bar.outcome is None else msgspec.to_builtins(bar.outcome),
        "settings": {name: shown(value) for name, value in settings.items()},
    }


def shown(value: object) -> object:
    """Returns numbers unchanged, other values as text of at most `SHOWN_SETTING` characters."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value if isinstance(value, str) else _BRIEF.repr(value))[:SHOWN_SETTING]


class _Brief(Repr):
    """Writes the beginning of a value, without reading the whole; of structs only changed fields."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, SHOWN_SETTING, SHOWN_SETTING
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = SHOWN_ITEMS

    def repr1(self, x: object, level: int) -> str:
        if not isinstance(x, Struct):
            return super().repr1(x, level)
        if not level:
            return "..."
        given = ((field.name, getattr(x, field.name), field.default) for field in fields(x))
        return ", ".join(
            f"{name}: {self.repr1(it, level - 1)}" for name, it, usual in given if it not in (usual, {})
        )


_BRIEF = _Brief()


def knob_of(row: Setting, live: LiveSettings) -> dict[str, object]:
    return {
        "name": row.name,
        "group": row.group,
        "kind": row.kind.name,
        "help": row.help,
        "unit": row.about.unit,
        "limits": row.limits,
        "choices": list(row.kind.type.__args__) if row.kind.name.startswith("one of ") else [],
        "optional": row.optional,
        "secret": row.about.secret,
        "value": row.shown(row.value(live.current)),
        "default": row.shown(row.default),
    }
