"""Is it there, is it ready, what is it: the small routes that probes and dashboards call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flask import Blueprint

from app.api.responder import ServerLoad
from app.clock.clock import Clock
from app.http.response import Reply, json_reply


class Drains(Protocol):
    """What answers requests, until it is told to take no more."""

    @property
    def draining(self) -> bool: ...

    def drain(self) -> None:
        """Admit no more requests; running ones go on."""


def readiness(service: Drains, clock: Clock, startup_s: float) -> Callable[[], bool]:
    """Ready from `startup_s` after now until the server drains."""
    ready_at_s = clock.now() + startup_s
    return lambda: clock.now() >= ready_at_s and not service.draining


def blueprint(ready: Callable[[], bool], load: ServerLoad, vllm_version: str) -> Blueprint:
    routes = Blueprint("health", __name__)

    @routes.get("/health")
    @routes.route("/ping", methods=["GET", "POST"])
    def health() -> Reply:
        """200 as long as the process serves at all."""
        return Reply(b"", 200)

    @routes.get("/health/ready")
    @routes.get("/ready")
    def health_ready() -> Reply:
        """200 when requests are welcome; 503 while starting up and while draining."""
        return Reply(b"", 200 if ready() else 503)

    @routes.get("/version")
    def version() -> Reply:
        """The vLLM version that is played."""
        return json_reply({"version": vllm_version})

    @routes.get("/load")
    def server_load() -> Reply:
        """Requests being answered now; always 0 unless tracking is on."""
        return json_reply({"server_load": load.count})

    return routes
