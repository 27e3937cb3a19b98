"""The routes below /admin: settings that change while the server runs, and draining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from flask import Blueprint, request

from app.api.admin.peer_ranks import PeerRanks
from app.engine.client import Service
from app.engine.lifecycle import Lifecycle
from app.http.body import BodyLimits
from app.http.errors import bad_request, malformed
from app.http.response import Reply, json_reply
from config import ConfigError
from config.fake_metrics import FakeMetricsError, merged
from config.live import LiveSettings
from config.settings import TABLE

FAKES = "fake-metrics"
"""The one setting of which only parts are given."""
CHECK = "/admin/config?check=true"


def blueprint(
    live: LiveSettings, lifecycle: Lifecycle, service: Service, body: BodyLimits, siblings: PeerRanks
) -> Blueprint:
    """A request with `?ranks=all` concerns all ranks, and is answered by rank."""
    routes = Blueprint("admin", __name__)

    def for_all(own: Callable[[], Any], data: bytes = b"", check: str = "") -> Reply:
        """Our own answer; or, for all ranks, everyone's. With `check`, all are asked to agree first."""
        if request.args.get("ranks") != "all":
            return json_reply(own())
        if check:
            siblings.ask(request.method, check, dict(request.headers), data)
        mine = own()
        others = siblings.ask(request.method, request.path, dict(request.headers), data)
        return json_reply(dict(sorted({str(siblings.own): mine, **others}.items())))

    @routes.get("/admin/config")
    def config() -> Reply:
        """All settings by name; secrets masked."""
        return for_all(lambda: live.current.dump())

    @routes.get("/admin/config/live")
    def live_names() -> Reply:
        """The settings that may change, with their meaning."""
        return json_reply({row.name: row.help for row in TABLE if row.live})

    @routes.post("/admin/config")
    def change() -> Reply:
        """Change some settings, all or none; answers with all of them. `?check=true` changes nothing."""
        data = body.read(request.environ)
        values = _object(data)
        try:
            if FAKES in values:
                values[FAKES] = merged(live.current.metrics.fake_metrics, values[FAKES])
            changed = live.changed(values)
        except (ConfigError, FakeMetricsError) as error:
            raise bad_request(f"{error}.") from None
        if request.args.get("check") == "true":
            return json_reply(changed.dump())
        return for_all(lambda: live.change(values).dump(), data, CHECK)

    @routes.post("/admin/drain")
    def drain() -> Reply:
        """Take no more requests and be unready; what runs goes on."""
        lifecycle.drain()
        executor = service.executor
        told = {"status": "draining", "running": executor.running, "waiting": executor.waiting}
        return for_all(lambda: told)

    return routes


def _object(data: bytes) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"body: {error}", "body") from None
    if not isinstance(values, dict):
        raise malformed("body: expected an object", "body")
    return values
