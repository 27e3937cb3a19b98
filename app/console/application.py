"""The console:

its assembly, its feed of frames, its routes below /admin; imported only when enabled.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from reprlib import Repr
from typing import TYPE_CHECKING, Any

import gevent
import msgspec
from gevent.queue import Queue
from msgspec import Struct
from msgspec.structs import fields

from app.base.clock.clock import Clock, Streams
from app.console import page
from app.console.bars import Bar, Origin, event_of
from app.console.compare import RunFigures, compare
from app.console.load import Generator, LoadPlan
from app.console.observer import Observer
from app.engine.core.delays import DelayLog
from app.engine.core.engine import Engine
from app.engine.core.lifecycle import Operations
from app.engine.core.request import EngineRequest
from app.engine.core.sequence import EngineClient
from app.engine.kvcache.cache import KVCacheManager
from app.extensions.devmode.routes import routes as lifecycle_routes
from app.serving.api.admin.server import PeerRanks, json_body
from app.serving.flask.application import Understudy
from app.serving.http.connection import Connection
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import malformed, not_found, unavailable
from app.serving.http.response import EVENT_STREAM, Response, StreamingBody, json_response
from app.serving.http.route import Route, get, post
from app.serving.middleware.stack import Middleware
from app.text.base import Tokenizer
from config import VLLM_VERSION
from config.settings import ServerSettings, Setting, Settings
from config.validation import LiveSettings

if TYPE_CHECKING:
    from app.engine.kvcache.publisher import Publisher

log = logging.getLogger(__name__)
OURS = ("/admin", "/console")
"""Path prefixes that the console does not show."""
ROOT = "/admin/console"
SHOWN_TOKENS, SHOWN_CHARACTERS, SHOWN_SETTING, SHOWN_ITEMS = 4096, 20_000, 1000, 20
"""Most prompt tokens and characters of a text, characters of a setting, and items in it, that are
shown.
"""
SETTINGS = (
    *("max_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "seed", "logprobs", "n"),
    *(
        "prompt_logprobs",
        "priority",
        "cache_salt",
        "cache_hit_threshold",
        "thinking_budget",
        "constraint",
    ),
    *("tool_calls", "sampling"),
)
"""Request fields that a client has set; the others are the server's own."""
ACTIONS = ("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache")
MARKS = {
    f"{place}{action}": action[1:].replace("_", " ")
    for action in (*ACTIONS, "/drain", "/scale_elastic_ep")
    for place in ("", "/admin", ROOT)
}
"""Texts of the marks that requests for these paths make on the time axis."""


EVERY_S, PATIENCE_S = 0.25, 30.0
"""Seconds between frames, and without reading after which a browser is cut off."""
MOST_SKIPPED = 3
"""Most frames in a row that are not sent while nothing changes."""
MOST_CONSOLES, MOST_WAITING = 8, 16
"""Most browsers, and most events that wait for one: four seconds."""


class ClientQueue(StreamingBody):
    """The events for one browser: an endless body, read by the greenlet of its request.

    Frames hold only changes, so a browser that lost one gets a whole picture again.
    """

    __slots__ = ("_connection", "_leave", "_queue", "_taken_s", "lost")

    def __init__(
        self, leave: "Callable[[ClientQueue], None]", connection: Connection | None
    ) -> None:
        super().__init__()
        self._leave, self._connection = leave, connection
        self._queue: Queue[bytes] = Queue(MOST_WAITING)
        self._taken_s = time.monotonic()
        self.lost = True
        """The client needs a picture before another frame."""

    def put(self, data: bytes) -> None:
        """Queues an event; without room the whole queue is dropped.

        Cuts off a browser that does not read.
        """
        self.lost = self._queue.full()
        if not self.lost:
            self._queue.put_nowait(data)
            return
        self._queue.queue.clear()
        if time.monotonic() - self._taken_s > PATIENCE_S:
            if self._connection is not None:
                self._connection.shut()
            self.leave()

    def __iter__(self) -> Iterator[bytes]:
        yield b""  # status line and headers leave now
        if self._connection is not None:
            self._connection.watch(self.leave)
        for data in self._queue:
            self._taken_s = time.monotonic()
            self.bytes_sent += len(data)
            yield data

    def leave(self) -> None:
        if not self.gone:
            self.gone = True
            self._leave(self)
            self._queue.queue.clear()
            self._queue.put_nowait(StopIteration)

    def close(self) -> None:
        self.leave()
        if self._connection is not None:
            self._connection.unwatch()


class Feed:
    """Frames for all open pages, encoded once; runs the observer while any client queue is open."""

    def __init__(
        self,
        observer: Observer,
        server: Callable[[], Mapping[str, object]],
        every_s: float = EVERY_S,
    ) -> None:
        """`server` returns the server's part of a picture."""
        self._observer, self._server, self._every_s = observer, server, every_s
        self._boxes: list[ClientQueue] = []
        self._sent = b""
        """The last frame, without its time."""
        self._skipped = 0
        self._greenlet: gevent.Greenlet | None = None

    def __len__(self) -> int:
        return len(self._boxes)

    def open(self, connection: Connection | None = None) -> ClientQueue:
        """Returns the queue of one more browser.

        Raises ApiError with status 503 above `MOST_CONSOLES`.
        """
        if len(self._boxes) >= MOST_CONSOLES:
            raise unavailable(f"There are {MOST_CONSOLES} consoles already; close one of them.")
        box = ClientQueue(self._leave, connection)
        self._boxes.append(box)
        if not self._observer.is_open:
            self._observer.begin()
        if self._greenlet is None:
            self._greenlet = gevent.spawn(self._run)
        return box

    def close(self) -> None:
        for box in list(self._boxes):
            box.leave()

    def _leave(self, box: ClientQueue) -> None:
        if box in self._boxes:
            self._boxes.remove(box)
            if not self._boxes:
                self._observer.end()

    def _run(self) -> None:
        while self._boxes:
            try:
                self._send()
            except Exception:
                log.exception("a frame of the console could not be made")
                self.close()
            gevent.sleep(self._every_s)
        self._greenlet = None

    def _send(self) -> None:
        data = event_of("frame", self._observer.frame())
        told, picture = data.partition(b",")[2], b""
        if (
            told == self._sent
            and self._skipped < MOST_SKIPPED
            and not any(box.lost for box in self._boxes)
        ):
            self._skipped += 1
            return
        self._sent, self._skipped = told, 0
        for box in list(self._boxes):  # none if all browsers left during a pause
            if box.lost and not picture:
                picture = event_of("picture", self._observer.picture(self._server()))
            box.put(picture if box.lost else data)


class Console(Middleware):
    """One rank's console: the engine's observer, and the routes.

    As middleware, shows each choice of a request as a bar, and requests refused before their first
    choice.
    """

    def __init__(
        self,
        live: LiveSettings,
        server: ServerSettings,
        engine: EngineClient,
        lifecycle: Operations,
        clock: Clock,
        cache: KVCacheManager | None,
        publisher: "Publisher | None",
        delays: DelayLog,
    ) -> None:
        self._live, self._server, self._engine, self._cache = live, server, engine, cache
        self._lifecycle = lifecycle
        self._publishes = publisher is not None
        self.observer = Observer(engine, lifecycle, clock.now, time.time, delays, cache, publisher)
        self._settings = live.current
        live.subscribe(self.on_settings)

    def on_settings(self, settings: Settings) -> None:
        """Marks the settings that have changed."""
        before, self._settings = self._settings, settings
        for row in settings.table.rows:
            if row.value(settings) != row.value(before):
                kind = "fault" if row.name.startswith(("fault-", "failure-")) else "setting"
                value = row.shown(row.value(settings))
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                self.observer.mark(kind, f"{row.name}: {text}")

    def begin(self, context: RequestContext) -> None:
        if context.method == "POST" and not context.path.startswith(OURS):
            origin = Origin.of(context)
            context.keep(origin)
            context.observers = (*context.observers, partial(self.observer.bars.watch, origin))

    def end(self, context: RequestContext, response: Response) -> None:
        if response.status < 400 and context.method == "POST" and (mark := MARKS.get(context.path)):
            self.observer.mark("scale" if "scale" in mark else "pause", mark)
        if response.status < 400 or context.method != "POST" or context.path.startswith(OURS):
            return
        origin = context.kept(Origin) or Origin.of(context)
        if not origin.choices:
            self.observer.bars.refused(context, origin, reason_of(response))

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
            get("/admin/requests/{id}", self._why),
            post(f"{ROOT}/compare", self._compare),
            post(f"{ROOT}/load", self._begin_load),
            Route(methods=("DELETE",), path=f"{ROOT}/load", handle=self._end_load),
        ]
        known = {
            route.path: route
            for route in lifecycle_routes(self._lifecycle, True, self._live.current.dump)
        }
        actions = [post(f"{ROOT}{path}", known[path].handle) for path in ACTIONS]
        app.add_routes("console_admin", [*own, *actions])

    def _described(self) -> dict[str, object]:
        settings, steps, cache = self._live.current, self.observer.executor, self._cache
        counted = settings.kvcache.kv_cache_size - 1 if steps else 0
        rank = self._siblings.own_rank
        first = self._server.port - (rank if len(self._ranks) > 1 else 0)
        return {
            "plays": VLLM_VERSION,
            "model": settings.model.served_names[0],
            "rank": rank,
            "ranks": {str(each): first + place for place, each in enumerate(self._ranks)},
            "places": settings.scheduling.max_num_seqs,
            "shared_steps": steps is not None,
            "profile": settings.steps.profile if steps else "",
            "budget": steps.limits.max_num_batched_tokens if steps else 0,
            "blocks": counted if cache is None else cache.capacity,
            "numbered": cache is not None,
            "block_size": settings.kvcache.block_size,
            "adapter_slots": self._engine.lora.most if isinstance(self._engine, Engine) else 0,
            "publishes": self._publishes,
            "index": settings.kvindex.kv_index,
            "scripts": any(route.path == "/admin/script" for route in self._app.routes),
        }

    # Routes below /admin; their docstrings are in GET /openapi.json.

    def _stream(self, context: RequestContext) -> Response:
        """Server-sent events: a picture, then four frames a second."""
        return Response(
            self._feed.open(context.connection), 200, {"Cache-Control": "no-store"}, EVENT_STREAM
        )

    def _figures(self, context: RequestContext) -> Response:
        """The figures of this rank; with `?ranks=all`, of each rank."""
        return json_response(self._siblings.answers(context, self.observer.summary()))

    def _request(self, context: RequestContext) -> Response:
        """Prompt, settings, tokens and blocks of the choice with this number."""
        number = context.params["number"]
        bar = (
            self.observer.bars.of(int(number)) if number.isdecimal() and len(number) < 16 else None
        )
        if bar is None:
            raise not_found(f"No request {number[:20]} is known any more.")
        why = self.observer.explain_choice(bar, bar.sequence)
        return json_response({**describe(bar, self._tokenizer), "why": why})

    def _why(self, context: RequestContext) -> Response:
        """Why a request took as long as it did: phases with their causes, and one sentence."""
        report = self.observer.explain(context.params["id"])
        if report is None:
            raise not_found("No request of this id is known any more.")
        return json_response(report)

    def _knobs(self, context: RequestContext) -> Response:
        """The settings that may change, as POST /admin/config takes them, and all others that
        differ.
        """
        knobs = (knob_of(row, self._live) for row in self._live.current.table.rows)
        return json_response([it for it in knobs if it["live"] or it["value"] != it["default"]])

    def _begin_load(self, context: RequestContext) -> Response:
        """Starts to send requests to this server, in place of any earlier plan."""
        plan = json_body(self._body.read(context), LoadPlan)
        self._generator.begin(plan)
        self.observer.mark("load", f"load of {plan.rate:g} requests/s for {plan.seconds:g} s")
        return json_response(self._generator.summary())

    def _compare(self, context: RequestContext) -> Response:
        """Compares two runs by their figures:

        rows, and one sentence on which run is better, and why.
        """
        a, b = json_body(self._body.read(context), tuple[RunFigures, RunFigures])
        try:
            return json_response(compare(a, b))
        except ValueError as error:
            raise malformed(str(error), "body") from None

    def _end_load(self, context: RequestContext) -> Response:
        """Ends sending requests, and cuts off the running ones."""
        self._generator.end()
        return json_response(self._generator.summary() or {})


def reason_of(response: Response) -> str:
    """Returns status and message of an error in one line, as `status 429: The queue is full.`"""
    message = ""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        data = response.body if isinstance(response.body, bytes) else b""
        body = msgspec.json.decode(data, type=dict[str, Any])
        error = body.get("error") or body.get("message", "")
        message = str(error.get("message", "") if isinstance(error, dict) else error)
    return ": ".join(filter(None, (f"status {response.status}", " ".join(message.split()))))


def describe(bar: Bar, tokenizer: Tokenizer) -> dict[str, object]:
    """Returns what the page does not know of a choice; long texts are cut."""
    request, sequence = bar.request, bar.sequence
    usual = {field.name: field.default for field in fields(EngineRequest)}
    settings = {
        name: value for name in SETTINGS if (value := getattr(request, name)) != usual[name]
    }
    if not request.limited:
        del settings["max_tokens"]
    prompt = tokenizer.decode(list(request.prompt_ids[:SHOWN_TOKENS]), skip_special_tokens=False)
    return {
        "client": bar.origin.client,
        "trace_id": bar.origin.trace_id,
        "prompt": prompt[:SHOWN_CHARACTERS],
        "reply": "" if sequence is None else sequence.text()[:SHOWN_CHARACTERS],
        "tokens": bar.tokens if sequence is None else sequence.tokens,
        "blocks": [] if sequence is None or sequence.over else sequence.block_numbers(0),
        "outcome": None if bar.outcome is None else msgspec.to_builtins(bar.outcome),
        "settings": {name: shown(value) for name, value in settings.items()},
    }


def shown(value: object) -> object:
    """Returns numbers unchanged, other values as text of at most `SHOWN_SETTING` characters.

    Only the beginning of a long value is read, and of a struct the fields that are not the
    defaults.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Struct):
        given = ((field.name, getattr(value, field.name), field.default) for field in fields(value))
        value = {name: it for name, it, usual in given if it not in (usual, {})}
    if isinstance(value, (tuple, frozenset)):
        value = list(islice(value, SHOWN_ITEMS + 1))
    brief = Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 3, SHOWN_SETTING, SHOWN_SETTING
    brief.maxdict = brief.maxlist = brief.maxtuple = brief.maxset = brief.maxfrozenset = SHOWN_ITEMS
    return str(value if isinstance(value, str) else brief.repr(value))[:SHOWN_SETTING]


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
        "live": row.about.live,
    }
