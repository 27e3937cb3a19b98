"""The routes below /admin: settings that change while the server runs, and draining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from app.api.admin.peer_ranks import PeerRanks
from app.engine.client import EngineClient
from app.engine.lifecycle import Lifecycle
from app.http.body import BodyLimits
from app.http.context import RequestContext
from app.http.errors import bad_request, malformed
from app.http.response import Response, json_response
from app.http.route import Route, get, post
from config import ConfigError
from config.fake_metrics import FakeMetricsError, merged
from config.live import LiveSettings
from config.settings import TABLE

FAKES = "fake-metrics"
"""The one setting of which only parts are given."""
CHECK = "/admin/config?check=true"


def routes(
    live: LiveSettings, lifecycle: Lifecycle, service: EngineClient, body: BodyLimits, siblings: PeerRanks
) -> list[Route]:
    """A request with `?ranks=all` concerns all ranks, and is answered by rank."""

    def for_all(
        context: RequestContext, own: Callable[[], Any], data: bytes = b"", check: str = ""
    ) -> Response:
        """Our own answer; or, for all ranks, everyone's. With `check`, all are asked to agree first."""
        if context.argument("ranks") != "all":
            return json_response(own())
        if check:
            siblings.ask(context.method, check, context.headers, data)
        mine = own()
        others = siblings.ask(context.method, context.path, context.headers, data)
        return json_response(dict(sorted({str(siblings.own): mine, **others}.items())))

    def config(context: RequestContext) -> Response:
        """All settings by name; secrets masked."""
        return for_all(context, lambda: live.current.dump())

    def live_names(context: RequestContext) -> Response:
        """The settings that may change, with their meaning."""
        return json_response({row.name: row.help for row in TABLE if row.live})

    def change(context: RequestContext) -> Response:
        """Change some settings, all or none; answers with all of them. `?check=true` changes nothing."""
        data = body.read(context)
        values = _object(data)
        try:
            if FAKES in values:
                values[FAKES] = merged(live.current.metrics.fake_metrics, values[FAKES])
            changed = live.changed(values)
        except (ConfigError, FakeMetricsError) as error:
            raise bad_request(f"{error}.") from None
        if context.argument("check") == "true":
            return json_response(changed.dump())
        return for_all(context, lambda: live.change(values).dump(), data, CHECK)

    def drain(context: RequestContext) -> Response:
        """Take no more requests and be unready; what runs goes on."""
        lifecycle.drain()
        told = {"status": "draining", "running": service.running, "waiting": service.waiting}
        return for_all(context, lambda: told)

    return [
        get("/admin/config", config),
        get("/admin/config/live", live_names),
        post("/admin/config", change),
        post("/admin/drain", drain),
    ]


def _object(data: bytes) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"body: {error}", "body") from None
    if not isinstance(values, dict):
        raise malformed("body: expected an object", "body")
    return values
