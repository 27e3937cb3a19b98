"""The routes below /admin: settings that change while the server runs, and draining."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, request

from app.api.body import BodyLimits
from app.api.replies import Reply, json_reply
from app.protocol.errors import bad_request, malformed
from app.serving.lifecycle import Lifecycle
from app.serving.service import Service
from config import ConfigError
from config.fake_metrics import merged
from config.fake_values import FakeMetricsError
from config.live import LiveSettings
from config.table import TABLE

FAKES = "fake-metrics"
"""The one setting of which only parts are given."""


def blueprint(live: LiveSettings, lifecycle: Lifecycle, service: Service, body: BodyLimits) -> Blueprint:
    routes = Blueprint("admin", __name__)

    @routes.get("/admin/config")
    def config() -> Reply:
        """All settings by name; secrets masked."""
        return json_reply(live.current.dump())

    @routes.get("/admin/config/live")
    def live_names() -> Reply:
        """The settings that may change, with their meaning."""
        return json_reply({row.name: row.help for row in TABLE if row.live})

    @routes.post("/admin/config")
    def change() -> Reply:
        """Change some settings, all or none; answers with all of them."""
        try:
            values = _object(body.read(request.environ))
            if FAKES in values:
                values[FAKES] = merged(live.current.metrics.fake_metrics, values[FAKES])
            return json_reply(live.change(values).dump())
        except (ConfigError, FakeMetricsError) as error:
            raise bad_request(f"{error}.") from None

    @routes.post("/admin/drain")
    def drain() -> Reply:
        """Take no more requests and be unready; what runs goes on."""
        lifecycle.drain()
        executor = service.executor
        told = {"status": "draining", "running": executor.running, "waiting": executor.waiting}
        return json_reply(told)

    return routes


def _object(data: bytes) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"body: {error}", "body") from None
    if not isinstance(values, dict):
        raise malformed("body: expected an object", "body")
    return values
