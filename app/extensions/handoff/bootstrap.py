"""Mooncake's bootstrap server, which knows the engines of a prefill pod.

`BootstrapServer` answers as vLLM's; `RankRegistration` enters a rank.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import gevent
import msgspec
from gevent import Greenlet
from msgspec import Struct

from app.extensions.data_parallel.side_server import ClientLimits, SideServer
from app.shared.http_client import exchange
from config.untrusted import UntrustedDataError, decode_untrusted

RETRY_S = 0.5
"""Seconds between two attempts to listen or to register."""
MAX_BODY_BYTES = 4_096
"""Maximum length of a registration."""
MAX_REGISTRATIONS = 4_096
"""Maximum number of registered workers of a pod."""
MAX_ANSWER_BYTES = 1 << 20
"""Maximum length of the answer to ``GET /query``, in bytes."""
METHODS = {"/query": "GET", "/register": "POST"}
log = logging.getLogger(__name__)

WorkerAddresses = dict[str, dict[str, str]]
"""ZMQ addresses by tensor-parallel rank and pipeline-parallel rank."""


class Registration(Struct, kw_only=True):
    """The body of ``POST /register``."""

    engine_id: str
    dp_rank: int
    tp_rank: int
    pp_rank: int
    addr: str


class EngineEntry(Struct):
    """An engine in the answer to ``GET /query``."""

    engine_id: str
    worker_addr: WorkerAddresses


Start = Callable[[str, list[tuple[str, str]]], object]


class BootstrapServer:
    """Serves ``GET /query`` and ``POST /register`` for the ranks of one pod.

    A rank that registers again with a new engine, after a restart, replaces its earlier one.
    """

    def __init__(
        self, host: str, port: int, registration: Registration, limits: ClientLimits
    ) -> None:
        self._address = (host, port)
        self._limits = limits
        self._entries: dict[str, EngineEntry] = {}
        self._answer_to_query: bytes | None = None
        """The encoded entries, which all responses share; None after a change."""
        self._server: SideServer | None = None
        self._greenlet: Greenlet[[], None] | None = None
        self._add(registration)

    def start(self) -> None:
        """Begins to listen, as soon as the port is free."""
        self._greenlet = gevent.spawn(self._listen)

    def close(self) -> None:
        """Closes the port."""
        if self._greenlet is not None:
            self._greenlet.kill()
        if self._server is not None:
            self._server.stop(timeout=0)

    def _listen(self) -> None:
        server = SideServer(self._address, self._respond, self._limits)
        is_logged = False
        while True:
            try:
                server.start()
            except OSError as error:
                if not is_logged:
                    host, port = self._address
                    log.warning(
                        "Mooncake: cannot listen on bootstrap port %d of %s: %s; retrying until "
                        "the port is free",
                        port,
                        host,
                        error.strerror,
                    )
                is_logged = True
                gevent.sleep(RETRY_S)
            else:
                self._server = server
                return

    def _respond(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        path = environ["PATH_INFO"]
        if path not in METHODS:
            return _answer(start, HTTPStatus.NOT_FOUND, {"detail": "Not Found"})
        if method != METHODS[path]:
            return _answer(start, HTTPStatus.METHOD_NOT_ALLOWED, {"detail": "Method Not Allowed"})
        if method == "GET":
            return _answer(start, HTTPStatus.OK, msgspec.Raw(self._encoded_entries()))
        return self._register(environ["wsgi.input"].read(MAX_BODY_BYTES + 1), start)

    def _register(self, body: bytes, start: Start) -> Iterable[bytes]:
        if len(body) > MAX_BODY_BYTES:
            detail = f"the body has more than {MAX_BODY_BYTES} bytes"
            return _answer(start, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"detail": detail})
        try:
            registration = decode_untrusted(body, type=Registration)
        except UntrustedDataError as error:
            return _answer(start, HTTPStatus.UNPROCESSABLE_ENTITY, {"detail": str(error)})
        if self._is_full(len(body)):
            return _answer(start, HTTPStatus.BAD_REQUEST, {"detail": "too many workers"})
        self._add(registration)
        return _answer(start, HTTPStatus.OK, {"status": "ok"})

    def _is_full(self, new_bytes: int) -> bool:
        """Returns whether a registration of `new_bytes` would exceed a limit."""
        if self._count() >= MAX_REGISTRATIONS:
            return True
        return len(self._encoded_entries()) + new_bytes > MAX_ANSWER_BYTES

    def _encoded_entries(self) -> bytes:
        if self._answer_to_query is None:
            self._answer_to_query = msgspec.json.encode(self._entries)
        return self._answer_to_query

    def _count(self) -> int:
        """Returns the number of registered workers."""
        return sum(
            len(addresses)
            for entry in self._entries.values()
            for addresses in entry.worker_addr.values()
        )

    def _add(self, registration: Registration) -> None:
        rank = str(registration.dp_rank)
        entry = self._entries.get(rank)
        if entry is None or entry.engine_id != registration.engine_id:
            entry = EngineEntry(registration.engine_id, {})
            self._entries[rank] = entry
        addresses = entry.worker_addr.setdefault(str(registration.tp_rank), {})
        addresses[str(registration.pp_rank)] = registration.addr
        self._answer_to_query = None


class RankRegistration:
    """Registers one of several ranks with the bootstrap server of its pod."""

    def __init__(self, address: str, registration: Registration) -> None:
        self._address = address
        self._body = msgspec.json.encode(registration)
        self._greenlet: Greenlet[[], None] | None = None

    def start(self) -> None:
        """Registers as soon as the server answers."""
        self._greenlet = gevent.spawn(self._register)

    def close(self) -> None:
        """Ends the attempts."""
        if self._greenlet is not None:
            self._greenlet.kill()

    def _register(self) -> None:
        while True:
            try:
                status, _ = exchange(self._address, "POST", "/register", self._body)
            except OSError:
                status = 0
            if status == HTTPStatus.OK:
                return
            gevent.sleep(RETRY_S)


def _answer(start: Start, status: HTTPStatus, content: object) -> Iterable[bytes]:
    start(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
    return [msgspec.json.encode(content)]
