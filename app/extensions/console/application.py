"""The console: its assembly and its routes below /admin; imported only when enabled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from app.core.api.admin import json_body
from app.core.engine.engine import Engine
from app.core.protocol.versions import simulated_version
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import malformed, not_found
from app.core.server.http.response import EVENT_STREAM, UNBUFFERED, Response, json_response
from app.core.server.http.route import Route, get, post
from app.core.server.middleware.stack import Middleware
from app.extensions.console import page
from app.extensions.console.bars import Bar, Origin
from app.extensions.console.compare import RunFigures, compare
from app.extensions.console.details import describe_choice, describe_setting, error_summary
from app.extensions.console.feed import Feed
from app.extensions.console.load import Generator, LoadPlan
from app.extensions.console.observer import ObservedEngine, Observer
from app.extensions.devmode.engine_actions import EngineActions
from app.extensions.explanation import Explanations
from config.settings import Settings

if TYPE_CHECKING:
    from app.core.extensions import ServerParts

HIDDEN_PREFIXES = ("/admin", "/console")
"""Path prefixes of requests that the console does not show."""
ROOT = "/admin/console"
ACTIONS = ("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache")
MARKS = {
    f"{prefix}{action}": action[1:].replace("_", " ")
    for action in (*ACTIONS, "/drain", "/scale_elastic_ep")
    for prefix in ("", "/admin", ROOT)
}
"""Texts of the marks that requests for these paths make on the time axis."""
MAX_BAR_DIGITS = 15


class Console(Middleware):
    """One rank's console: the engine's observer, and the routes.

    As middleware, it shows each choice of a request as a bar, and requests that were rejected
    before their first choice.
    """

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._live = parts.live
        self._server = parts.server
        self._siblings = parts.peers
        self._body = parts.body
        self._ranks = list(parts.server.ranks)
        self._observed = ObservedEngine(
            engine=parts.engine,
            lifecycle=parts.lifecycle,
            delays=parts.get(Explanations).delays,
            cache=parts.cache,
            publisher=parts.publisher,
        )
        self.observer = Observer(self._observed, parts.clock.now, time.time)
        self._feed = Feed(self.observer, self._server_description)
        self._generator = Generator(
            parts.live, parts.server, parts.tokenizer, parts.streams("console load")
        )
        self.observer.load = self._generator.summary
        parts.until_drained += [self._feed.close, self._generator.stop]
        self._settings = parts.live.current
        parts.live.subscribe(self.on_settings)

    def on_settings(self, settings: Settings) -> None:
        """Marks the settings that have changed."""
        previous = self._settings
        self._settings = settings
        for row in settings.table.rows:
            if row.value(settings) != row.value(previous):
                kind = "setting"
                if row.name.startswith(("fault-", "failure-")):
                    kind = "fault"
                value = row.shown(row.value(settings))
                if not isinstance(value, str):
                    value = msgspec.json.encode(value).decode()
                self.observer.mark(kind, f"{row.name}: {value}")

    def begin(self, context: RequestContext) -> None:
        """Observes the choices of a request."""
        if context.method == "POST" and not context.path.startswith(HIDDEN_PREFIXES):
            origin = Origin.from_context(context)
            context.keep(origin)
            context.observers = (*context.observers, partial(self.observer.bars.watch, origin))

    def end(self, context: RequestContext, response: Response) -> None:
        """Marks an action on the time axis, and shows a rejected request."""
        if context.method != "POST":
            return
        if response.status < 400:
            mark = MARKS.get(context.path, "")
            if "scale" in mark:
                self.observer.mark("scale", mark)
            elif mark:
                self.observer.mark("pause", mark)
        elif not context.path.startswith(HIDDEN_PREFIXES):
            origin = context.kept(Origin) or Origin.from_context(context)
            if not origin.choices:
                self.observer.bars.add_refused(context, origin, error_summary(response))

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the page and its routes."""
        routes = [
            get(f"{ROOT}/stream", self._stream),
            get(f"{ROOT}/figures", self._figures),
            get(f"{ROOT}/requests/{{number}}", self._request),
            get(f"{ROOT}/knobs", self._knobs),
            get(f"{ROOT}/lessons", self._lessons),
            get(f"{ROOT}/lessons/{{name}}", self._lesson),
            get("/admin/requests/{id}", self._why),
            post(f"{ROOT}/compare", self._compare),
            post(f"{ROOT}/load", self._begin_load),
            Route(methods=("DELETE",), path=f"{ROOT}/load", handle=self._end_load),
        ]
        routes += EngineActions(self._observed.lifecycle, sleep_enabled=True).routes(ROOT)
        return {"console": page.routes(), "console_admin": routes}

    def _server_description(self) -> dict[str, object]:
        """Returns the constants of the server in a picture."""
        settings = self._live.current
        engine = self._observed.engine
        cache = self._observed.cache
        steps = self.observer.executor
        adapter_slots = 0
        if isinstance(engine, Engine):
            adapter_slots = engine.lora.capacity
        profile = ""
        budget = 0
        blocks = 0
        if steps is not None:
            profile = settings.steps.profile
            budget = steps.limits.max_num_batched_tokens
            blocks = settings.kvcache.kv_cache_size - 1
        if cache is not None:
            blocks = cache.capacity
        rank = self._siblings.own_rank
        first_port = self._server.port
        if len(self._ranks) > 1:
            first_port -= rank
        ports = {}
        for index, number in enumerate(self._ranks):
            ports[str(number)] = first_port + index
        return {
            "plays": simulated_version(settings.api).release,
            "model": settings.model.served_names[0],
            "rank": rank,
            "ranks": ports,
            "places": settings.scheduling.max_num_seqs,
            "shared_steps": steps is not None,
            "profile": profile,
            "budget": budget,
            "blocks": blocks,
            "numbered": cache is not None,
            "block_size": settings.kvcache.block_size,
            "adapter_slots": adapter_slots,
            "publishes": self._observed.publisher is not None,
            "index": settings.get("kv-index", False),
            "scripts": any(route.path == "/admin/script" for route in self._parts.routes()),
        }

    # Routes below /admin; their docstrings are in GET /openapi.json.

    def _stream(self, context: RequestContext) -> Response:
        """Server-sent events: a picture, then four frames a second."""
        headers = {"Cache-Control": "no-store", UNBUFFERED: "no"}
        return Response(self._feed.open(context.connection), 200, headers, EVENT_STREAM)

    def _figures(self, context: RequestContext) -> Response:
        """The figures of this rank; with `?ranks=all`, of each rank."""
        return json_response(self._siblings.answers(context, self.observer.summary()))

    def _request(self, context: RequestContext) -> Response:
        """Prompt, settings, tokens and blocks of the choice with this number."""
        number = context.params["number"]
        bar: Bar | None = None
        if number.isdecimal() and len(number) <= MAX_BAR_DIGITS:
            bar = self.observer.bars.find(int(number))
        if bar is None:
            raise not_found(f"Request {number[:20]} is no longer stored.")
        why = self.observer.explain_choice(bar, bar.sequence)
        return json_response({**describe_choice(bar, self._parts.tokenizer), "why": why})

    def _why(self, context: RequestContext) -> Response:
        """Why a request took as long as it did: phases with their causes, and one sentence."""
        report = self.observer.explain(context.params["id"])
        if report is None:
            raise not_found("The request with this ID is no longer stored.")
        return json_response(report)

    def _knobs(self, context: RequestContext) -> Response:
        """The settings that may change at run time, and all that differ from the default."""
        settings: list[dict[str, object]] = []
        for row in self._live.current.table.rows:
            setting = describe_setting(row, self._live)
            if setting["live"] or setting["value"] != setting["default"]:
                settings.append(setting)
        return json_response(settings)

    def _lessons(self, context: RequestContext) -> Response:
        """The lessons: titles, texts, terms, charts, and flags of a server with the same engine."""
        from app.extensions.console.lesson_terms import terms_of  # few pages ask for them
        from app.extensions.console.lessons import LESSONS

        lessons: list[dict[str, object]] = []
        for lesson in LESSONS:
            lessons.append(
                {
                    "name": lesson.name,
                    "title": lesson.title,
                    "text": lesson.text,
                    "terms": terms_of(lesson.text),
                    "panels": lesson.panels,
                    "curves": lesson.curves,
                    "rows": lesson.rows,
                    "flags": lesson.engine.flags(),
                }
            )
        return json_response(lessons)

    def _lesson(self, context: RequestContext) -> Response:
        """Runs a lesson on a separate small engine, and returns the recording."""
        from app.extensions.console.lesson_engine import LessonEngine
        from app.extensions.console.lessons import find_lesson

        name = context.params["name"]
        lesson = find_lesson(name)
        if lesson is None:
            raise not_found(f"There is no lesson {name[:20]}.")
        return json_response(LessonEngine(lesson).play())

    def _begin_load(self, context: RequestContext) -> Response:
        """Starts to send requests to this server, in place of any earlier plan."""
        plan = json_body(self._body.read(context), LoadPlan)
        self._generator.start(plan)
        self.observer.mark("load", f"load of {plan.rate:g} requests/s for {plan.seconds:g} s")
        return json_response(self._generator.summary())

    def _compare(self, context: RequestContext) -> Response:
        """Compares two runs by their figures, and returns the better run with the reason."""
        a, b = json_body(self._body.read(context), tuple[RunFigures, RunFigures])
        try:
            return json_response(compare(a, b))
        except ValueError as error:
            raise malformed(str(error), "body") from None

    def _end_load(self, context: RequestContext) -> Response:
        """Stops to send requests, and cuts off the running ones."""
        self._generator.stop()
        return json_response(self._generator.summary() or {})
