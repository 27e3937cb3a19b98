"""The supervisor of ranks with separate ports, as vLLM's (`entrypoints/openai/dp_supervisor.py`).

It answers `GET /health`, `/ready` and `/readyz` on one port for all ranks of the server: 200 when
every rank was healthy at its last probe, else 503. It runs in the worker of the first rank.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import gevent
from gevent.pool import Group

from app.core.server.gunicorn.ranks import rank_urls
from app.extensions.data_parallel.settings import SupervisorSettings
from app.extensions.data_parallel.side_server import ClientLimits, SideServer
from app.shared.http_client import HttpConnection

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from app.core.base import Bounded
    from app.core.extensions import OtherEngine, ServerParts
    from app.core.server.flask.application import BackgroundService
    from config import Settings

PATHS = ("/health", "/ready", "/readyz")
log = logging.getLogger(__name__)


class SupervisedPort:
    """The port of one rank. The first rank of the server runs the supervisor."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts

    def engine(self) -> OtherEngine | None:
        """Returns None: the port has one rank."""
        return None

    def services(self) -> Sequence[BackgroundService]:
        """Returns the supervisor, in the worker of the first rank."""
        settings = self._parts.settings
        if self._parts.rank != settings.server.ranks[0]:
            return []
        supervisor = Supervisor(settings, settings.section(SupervisorSettings), end_arbiter)
        self._parts.until_drained.append(supervisor.withdraw)
        return [supervisor]

    def caches(self) -> Mapping[str, Bounded]:
        """Returns nothing: probes keep no memory."""
        return {}


class RankProbe:
    """Asks one rank for its health."""

    def __init__(self, url: str, options: SupervisorSettings) -> None:
        parts = urlsplit(url)
        self.address = parts.netloc
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._tls.check_hostname = False  # the rank is local
            self._tls.verify_mode = ssl.CERT_NONE
        self._timeout_s = options.dp_supervisor_probe_timeout_s
        self._interval_s = options.dp_supervisor_probe_interval_s

    def is_healthy(self, attempts: int) -> bool:
        """Returns whether GET /health is 200.

        A rank that does not answer is asked again, `attempts` times in all. A different status is
        final, as in vLLM: it means that the engine is dead.
        """
        for attempt in range(attempts):
            if attempt:
                gevent.sleep(self._interval_s)
            with suppress(OSError):
                return self._status() == HTTPStatus.OK
        return False

    def _status(self) -> int:
        connection = HttpConnection(self.address, self._timeout_s, self._tls)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status
        finally:
            connection.close()


class Supervisor:
    """Probes all ranks, and serves their common health."""

    def __init__(
        self, settings: Settings, options: SupervisorSettings, end_server: Callable[[], None]
    ) -> None:
        """`end_server` is called once when a rank fails after all were healthy."""
        self._settings = settings
        self._options = options
        self._end_server = end_server
        urls = rank_urls(settings.server, settings.tls)
        self._probes = [RankProbe(url, options) for _, url in urls]
        self._server: SideServer | None = None
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._is_ready = False
        self._is_ending = False

    def start(self) -> None:
        """Starts to probe, and to listen."""
        self._greenlet = gevent.spawn(self._run)

    def withdraw(self) -> None:
        """Reports not ready from now on: the server ends."""
        self._is_ending = True

    def close(self) -> None:
        """Stops to probe, and closes the port."""
        if self._greenlet is not None:
            self._greenlet.kill()
        if self._server is not None:
            self._server.close()

    def answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers a request as a WSGI application."""
        body = b""
        if environ["PATH_INFO"] not in PATHS:
            status = HTTPStatus.NOT_FOUND
            body = b'{"detail":"Not Found"}'
        elif environ["REQUEST_METHOD"] != "GET":
            status = HTTPStatus.METHOD_NOT_ALLOWED
            body = b'{"detail":"Method Not Allowed"}'
        elif self._is_ready and not self._is_ending:
            status = HTTPStatus.OK
        else:
            status = HTTPStatus.SERVICE_UNAVAILABLE
        headers = [("Content-Length", str(len(body)))]
        if body:
            headers.append(("Content-Type", "application/json"))
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    def _run(self) -> None:
        while not self._is_ending:
            if self._server is None:
                self._listen()
            attempts = 1
            if self._is_ready:
                attempts = self._options.dp_supervisor_probe_failure_threshold
            failed = self._failed_addresses(attempts)
            if not failed:
                self._is_ready = True
            elif self._is_ready and not self._is_ending:
                log.error(
                    "supervisor: stopping the server because these ranks are not healthy: %s",
                    ", ".join(failed),
                )
                self.withdraw()
                self._end_server()
            gevent.sleep(self._options.dp_supervisor_probe_interval_s)

    def _failed_addresses(self, attempts: int) -> list[str]:
        group = Group()
        greenlets = [group.spawn(probe.is_healthy, attempts) for probe in self._probes]
        group.join()
        failed = []
        for probe, greenlet in zip(self._probes, greenlets, strict=True):
            if not greenlet.value:
                failed.append(probe.address)
        return failed

    def _listen(self) -> None:
        """Opens the port; logs an error if that fails, and leaves the next try to the caller."""
        host = self._settings.server.host
        port = self._options.data_parallel_supervisor_port
        assert port is not None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            # A reload starts the next worker before this one has closed its listener.
            listener = socket.create_server((host, port), family=family, reuse_port=True)
        except OSError as error:
            log.error("supervisor: cannot listen on %s:%d: %s", host, port, error.strerror)
            return
        certificate = {}
        tls = self._settings.tls
        if tls.ssl_certfile is not None:
            certificate = {"certfile": tls.ssl_certfile, "keyfile": tls.ssl_keyfile}
        limits = ClientLimits.from_settings(self._settings.server)
        self._server = SideServer(listener, self.answer, limits, **certificate)
        self._server.start()
        log.info("the supervisor of %d ranks is listening at %s:%d", len(self._probes), host, port)


def end_arbiter() -> None:
    """Ends the whole server, whose arbiter is the parent of this worker."""
    os.kill(os.getppid(), signal.SIGTERM)
