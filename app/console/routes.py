"""Routes of the page, all below /admin: the stream, one request, settings, actions, the load generator."""

from __future__ import annotations

from collections.abc import Callable
from reprlib import Repr
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from app.console.bars import Bar
from app.console.feed import Feed
from app.console.load import Generator, LoadPlan
from app.console.observer import Observer
from app.engine.core.lifecycle import Operations
from app.engine.core.request import EngineRequest
from app.serving.api.admin.config import PeerRanks
from app.serving.api.admin.lifecycle import routes as lifecycle_routes
from app.serving.http.body import BodyLimits
from app.serving.http.context import RequestContext
from app.serving.http.errors import malformed, not_found
from app.serving.http.response import EVENT_STREAM, Response, json_response
from app.serving.http.route import Route, get, post
from app.text import Tokenizer
from config.live import LiveSettings
from config.settings import Setting

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


def admin_routes(
    feed: Feed,
    observer: Observer,
    generator: Generator,
    tokenizer: Tokenizer,
    live: LiveSettings,
    siblings: PeerRanks,
    body: BodyLimits,
) -> list[Route]:
    def stream(context: RequestContext) -> Response:
        """Server-sent events: a picture, then four frames a second."""
        return Response(feed.open(context.connection), 200, {"Cache-Control": "no-store"}, EVENT_STREAM)

    def figures(context: RequestContext) -> Response:
        """The figures of this rank; with `?ranks=all`, of each rank."""
        return json_response(siblings.answers(context, observer.summary()))

    def one(context: RequestContext) -> Response:
        """Prompt, settings, tokens and blocks of the choice with this number."""
        number = context.params["number"]
        bar = observer.bars.of(int(number)) if number.isdecimal() and len(number) < 16 else None
        if bar is None:
            raise not_found(f"No request {number[:20]} is known any more.")
        return json_response(describe(bar, tokenizer))

    def knobs(context: RequestContext) -> Response:
        """The settings that may change, as POST /admin/config takes them."""
        return json_response([knob_of(row, live) for row in live.current.table.rows if row.live])

    def begin(context: RequestContext) -> Response:
        """Starts to send requests to this server, in place of any earlier plan."""
        try:
            plan = msgspec.json.decode(body.read(context), type=LoadPlan)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise malformed(f"body: {error}", "body") from None
        generator.begin(plan)
        return json_response(generator.summary())

    def end(context: RequestContext) -> Response:
        """Ends sending requests, and cuts off the running ones."""
        generator.end()
        return json_response(generator.summary() or {})

    return [
        get(f"{ROOT}/stream", stream),
        get(f"{ROOT}/figures", figures),
        get(f"{ROOT}/requests/{{number}}", one),
        get(f"{ROOT}/knobs", knobs),
        post(f"{ROOT}/load", begin),
        Route(methods=("DELETE",), path=f"{ROOT}/load", handle=end),
    ]


def action_routes(lifecycle: Operations, settings: Callable[[], dict[str, Any]]) -> list[Route]:
    """Returns the development routes under the admin key, such as /admin/console/pause."""
    known = {route.path: route for route in lifecycle_routes(lifecycle, True, settings)}
    return [post(f"{ROOT}{path}", known[path].handle) for path in ACTIONS]


def describe(bar: Bar, tokenizer: Tokenizer) -> dict[str, Any]:
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


def knob_of(row: Setting, live: LiveSettings) -> dict[str, Any]:
    return {
        "name": row.name,
        "group": row.group,
        "kind": row.kind.name,
        "help": row.help,
        "unit": row.unit,
        "limits": row.limits,
        "choices": list(row.kind.type.__args__) if row.kind.name.startswith("one of ") else [],
        "optional": row.optional,
        "secret": row.secret,
        "value": row.shown(row.value(live.current)),
        "default": row.shown(row.default),
    }
