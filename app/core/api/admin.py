"""Routes of operators: health, metrics, other reports; settings of all ranks, scripts, draining."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from app.core.api.responder import ServerLoad
from app.core.base import Bounded
from app.core.base.clock.clock import Clock
from app.core.base.metrics.instruments import CONTENT_TYPE, Exposition
from app.core.engine.client import EngineClient
from app.core.server.http.context import BodyLimits, RequestContext
from app.core.server.http.errors import ApiError, bad_request, malformed, unavailable
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import NO_DOCS, NO_MEDIA, Route, RouteDocs, probe
from config import VLLM_VERSION, Settings
from config.validation import LiveSettings

if TYPE_CHECKING:
    from urllib3 import PoolManager


T = TypeVar("T")
RANK_TIMEOUT_S = 5.0
"""Longest time that another rank may take to answer, in seconds."""
FORWARDED_HEADERS = ("authorization", "x-admin-key", "content-type")
ANY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
"""vLLM mounts the metrics as a separate application, which ignores the method."""
EMPTY_ANSWER = RouteDocs(media=NO_MEDIA)
ANY_OBJECT = dict[str, object]
"""Type of a body that may be any JSON object."""

Caches = Callable[[], Mapping[str, Bounded]]
"""Returns the caches of a part of the server, by name; some exist only after the start."""
Work = Callable[[RequestContext], object]


class Drains(Protocol):
    """A service that can be drained."""

    withdrawn: bool

    @property
    def draining(self) -> bool:
        """No requests are admitted any more."""

    @property
    def healthy(self) -> bool:
        """Requests can be answered."""

    def drain(self) -> None:
        """Stops admitting requests."""


def readiness(service: Drains, clock: Clock, startup_s: float) -> Callable[[], bool]:
    """Returns a check that is true from `startup_s` seconds after now until `service` withdraws."""
    ready_at_s = clock.now() + startup_s

    def is_ready() -> bool:
        is_ending = service.withdrawn or service.draining
        return clock.now() >= ready_at_s and service.healthy and not is_ending

    return is_ready


class RanksQuery(Struct):
    """Queries of settings and draining; the handlers read them without this type."""

    check: bool = False
    ranks: Literal["all"] | None = None


def action(operation: str, work: Work, docs: RouteDocs = NO_DOCS) -> Route:
    """Returns a route, for "METHOD /path", that answers the value of `work` as JSON.

    For None the answer is an empty 200.
    """

    def handle(context: RequestContext) -> Response:
        answer = work(context)
        if answer is None:
            return Response()
        return json_response(answer)

    handle.__doc__ = work.__doc__
    method, _, path = operation.partition(" ")
    return Route(methods=(method,), path=path, handle=handle, docs=docs)


def json_body(data: bytes, body_type: type[T]) -> T:
    """Returns the JSON of a body as `body_type`.

    Raises:
        ApiError: 400 for anything else.
    """
    try:
        return msgspec.json.decode(data, type=body_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"body: {error}", "body") from None


def health_routes(
    healthy: Callable[[], bool], ready: Callable[[], bool], load: ServerLoad
) -> list[Route]:
    """Returns the routes of health, version and load."""

    def health(context: RequestContext) -> Response:
        """200 as long as the process serves at all; 503 while a separate engine process is gone."""
        return Response(b"", 200 if healthy() else 503)

    def health_ready(context: RequestContext) -> Response:
        """200 when requests are admitted; 503 while starting up and while draining."""
        return Response(b"", 200 if ready() else 503)

    def version(context: RequestContext) -> Response:
        """The emulated vLLM version."""
        return json_response({"version": VLLM_VERSION})

    def server_load(context: RequestContext) -> Response:
        """Requests being answered now; always 0 unless tracking is on."""
        return json_response({"server_load": load.count})

    return [
        probe("/health", health, docs=EMPTY_ANSWER),
        probe("/ping", health, "POST", docs=EMPTY_ANSWER),
        probe("/health/ready", health_ready, docs=EMPTY_ANSWER),
        probe("/ready", health_ready, docs=EMPTY_ANSWER),
        probe("/version", version),
        probe("/load", server_load),
    ]


def metrics_routes(exposition: Exposition) -> list[Route]:
    """Returns the route of the metrics."""

    def metrics(context: RequestContext) -> Response:
        """All families in Prometheus' text format."""
        return Response(exposition.render(), 200, content_type=CONTENT_TYPE)

    return [Route(methods=ANY_METHOD, path="/metrics", handle=metrics)]


def memory_routes(cache_sources: Iterable[Caches]) -> list[Route]:
    """Returns the route of all caches. `cache_sources` is read at each request: it may grow."""

    def memory(context: RequestContext) -> object:
        """Bytes of each cache, and their sum."""
        caches: dict[str, Bounded] = {}
        for source in cache_sources:
            caches.update(source())
        sizes = {
            name: {"size_bytes": cache.size_bytes, "limit_bytes": cache.limit_bytes}
            for name, cache in sorted(caches.items())
        }
        return {
            "size_bytes": sum(size["size_bytes"] for size in sizes.values()),
            "limit_bytes": sum(size["limit_bytes"] for size in sizes.values()),
            "caches": sizes,
        }

    return [action("GET /admin/memory", memory)]


def routes(
    live: LiveSettings,
    service: EngineClient,
    body: BodyLimits,
    siblings: PeerRanks,
) -> list[Route]:
    """Returns the routes of settings and draining.

    A request with `?ranks=all` concerns all ranks, and is answered by rank.
    """

    def config(context: RequestContext) -> object:
        """All settings by name; secrets masked."""
        return siblings.answers(context, live.current.dump())

    def live_help(context: RequestContext) -> object:
        """The settings that may change, with their meaning."""
        return {row.name: row.help for row in live.current.table.rows if row.about.live}

    def change(context: RequestContext) -> object:
        """Changes some settings, all or none; the answer has all settings.

        `?check=true` changes nothing.
        """
        data = body.read(context)
        values = json_body(data, dict[str, Any])
        try:
            for name, value in values.items():
                values[name] = _merged_value(live.current, name, value)
            changed = live.changed(values)
        except ValueError as error:
            raise bad_request(f"{error}.") from None
        if context.query().get("check") == "true":
            return changed.dump()
        if context.query().get("ranks") == "all":  # all ranks must agree before any changes
            siblings.ask(context.method, "/admin/config?check=true", context.headers, data)
        return siblings.answers(context, live.change(values).dump(), data)

    def drain(context: RequestContext) -> object:
        """Stops admitting requests and reports not ready; running requests continue."""
        service.drain()
        answer = {
            "status": "draining",
            "running": service.running,
            "waiting": service.waiting,
        }
        return siblings.answers(context, answer)

    change_docs = RouteDocs(body=(ANY_OBJECT,), example={"log-http": False}, query=RanksQuery)
    return [
        action("GET /admin/config", config, RouteDocs(query=RanksQuery)),
        action("GET /admin/config/live", live_help),
        action("POST /admin/config", change, change_docs),
        action("POST /admin/drain", drain, RouteDocs(query=RanksQuery)),
    ]


def _merged_value(settings: Settings, name: str, value: object) -> object:
    """Returns the new value of a setting; that of a setting with parts keeps its other parts.

    Raises:
        ValueError: `value` has a wrong part.
    """
    row = settings.table.by_name.get(name)
    if row is None or row.about.merge is None:
        return value
    return row.about.merge(row.value(settings), value)


class PeerRanks:
    """The other ranks of this server, by number and base URL.

    Requests with `?ranks=all` reach them, too.
    """

    def __init__(self, own_rank: int, others: Sequence[tuple[int, str]]) -> None:
        self.own_rank = own_rank
        self._others = others
        self._pool: PoolManager | None = None
        if others:
            from urllib3 import PoolManager  # a slow import, and most servers have one rank

            self._pool = PoolManager(timeout=RANK_TIMEOUT_S, retries=False, cert_reqs="CERT_NONE")

    def answers(self, context: RequestContext, own_answer: object, body: bytes = b"") -> object:
        """Returns the answer of this rank; with `?ranks=all` every rank's answer, by rank.

        Raises:
            ApiError: as `ask` does.
        """
        if context.query().get("ranks") != "all":
            return own_answer
        _, _, query = context.target.partition("?")
        forwarded_query = "&".join(part for part in query.split("&") if part != "ranks=all")
        path = context.path
        if forwarded_query:
            path += "?" + forwarded_query
        answers = self.ask(context.method, path, context.headers, body)
        answers[str(self.own_rank)] = own_answer
        return dict(sorted(answers.items()))

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> dict[str, Any]:
        """Returns the JSON answers of the other ranks, by rank.

        Raises:
            ApiError: with the status and message of the first rank that rejects the request; 503
                for a rank that does not answer.
        """
        forwarded = {name: headers[name] for name in FORWARDED_HEADERS if name in headers}
        return {
            str(rank): self._ask(rank, method, url + path, headers=forwarded, body=body)
            for rank, url in self._others
        }

    def _ask(
        self, rank: int, method: str, url: str, *, headers: Mapping[str, str], body: bytes
    ) -> Any:
        from urllib3.exceptions import HTTPError

        assert self._pool is not None
        try:
            response = self._pool.request(method, url, headers=headers, body=body)
            answer = response.json()
        except (HTTPError, ValueError) as error:
            raise unavailable(f"Rank {rank} does not answer: {error}") from None
        if response.status == 200:
            return answer
        details = None
        if isinstance(answer, dict):
            details = answer.get("error")
        if not isinstance(details, dict):
            details = {"message": f"status {response.status}"}
        message = f"Rank {rank}: {details.get('message')}"
        raise ApiError(response.status, details.get("type", "Error"), message)
