"""Addresses of the engines of MooncakeConnector: `EngineDirectory` asks bootstrap servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from http import HTTPStatus
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

import gevent
from cachetools import LRUCache

from app.extensions.handoff.bootstrap import MAX_ANSWER_BYTES, EngineEntry
from app.shared.http_client import HttpConnection, whole_response
from config.untrusted import decode_untrusted

REQUEST_TIMEOUT_S = 5.0
"""Maximum time of a query, in seconds."""
MAX_ENGINES = 4_096
"""Maximum number of remembered engines; the one that was used longest ago is forgotten."""

log = logging.getLogger(__name__)

TakeAddress: TypeAlias = Callable[[str, int, str], None]
"""Takes host and port of an engine's side channel, and the problem, empty if it was found."""


class EngineAddress(NamedTuple):
    """The side channel of an engine."""

    host: str
    port: int


class Lookup(NamedTuple):
    """An engine that a request needs, with the function that gets its address."""

    engine_id: str
    take: TakeAddress


class EngineDirectory:
    """Remembers each engine that a bootstrap server has named, as vLLM does.

    A server is asked for unknown engines only, and by one query at a time.
    """

    def __init__(self) -> None:
        self._addresses: LRUCache[str, EngineAddress] = LRUCache(MAX_ENGINES)
        self._lookups: dict[str, list[Lookup]] = {}
        """Lookups that wait for an answer, by the URL of the bootstrap server."""

    def find(self, bootstrap_url: str, engine_id: str, take: TakeAddress) -> None:
        """Calls `take` with the address of an engine, now or in a greenlet."""
        lookup = Lookup(engine_id, take)
        if engine_id in self._addresses:
            self._answer(lookup, "")
        elif bootstrap_url in self._lookups:
            self._lookups[bootstrap_url].append(lookup)
        else:
            self._lookups[bootstrap_url] = [lookup]
            gevent.spawn(self._query, bootstrap_url)

    def _query(self, bootstrap_url: str) -> None:
        problem = ""
        try:
            self._remember(_engines_at(bootstrap_url))
        except (OSError, ValueError) as error:
            problem = str(error)
        except Exception:  # no request may wait forever
            log.exception("bootstrap server %s: the query failed", bootstrap_url)
            problem = "the query failed"
        for lookup in self._lookups.pop(bootstrap_url):
            missing = problem or f"remote engine_id {lookup.engine_id} not found"
            try:
                self._answer(lookup, f"bootstrap server {bootstrap_url}: {missing}")
            except Exception:  # one request must not stop the others
                log.exception("the address of engine %s could not be used", lookup.engine_id)

    def _answer(self, lookup: Lookup, problem: str) -> None:
        """Passes the address on, or the problem if the engine is unknown."""
        address = self._addresses.get(lookup.engine_id)
        if address is None:
            lookup.take("", 0, problem)
            return
        lookup.take(address.host, address.port, "")

    def _remember(self, entries: Mapping[str, EngineEntry]) -> None:
        for entry in entries.values():
            address = _address_of(entry)
            if address is not None:
                self._addresses[entry.engine_id] = address


def _address_of(entry: EngineEntry) -> EngineAddress | None:
    """Returns the address of the first worker of an engine; None if it is missing or invalid."""
    try:
        worker = urlsplit(entry.worker_addr.get("0", {}).get("0", ""))
        port = worker.port
    except ValueError:
        return None
    if not worker.hostname or not port:
        return None
    return EngineAddress(worker.hostname, port)


def _engines_at(bootstrap_url: str) -> dict[str, EngineEntry]:
    """Returns the engines of a bootstrap server by their ranks.

    Raises:
        OSError: The bootstrap server does not answer in time, or not with HTTP, or with too much.
        ValueError: The URL is invalid, or the answer has another form.
    """
    address = urlsplit(bootstrap_url)
    if not address.hostname or not address.port:
        raise ValueError("must be an address such as http://host:8998")
    netloc = f"{address.hostname}:{address.port}"
    with closing(HttpConnection(netloc, REQUEST_TIMEOUT_S)) as connection:
        response, body = whole_response(
            connection, "GET", "/query", body=None, headers={}, max_bytes=MAX_ANSWER_BYTES
        )
    if response.status != HTTPStatus.OK:
        raise ValueError(f"status {response.status}")
    return decode_untrusted(body, type=dict[str, EngineEntry])
