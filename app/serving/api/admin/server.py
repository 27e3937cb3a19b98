"""Routes of operators: health, metrics, other reports; settings of all ranks, scripts, draining."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from app.base import Bounded
from app.base.clock.clock import Clock
from app.base.metrics.instruments import CONTENT_TYPE, Exposition
from app.engine.core.client import EngineClient
from app.engine.core.lifecycle import Operations
from app.serving.api.responder import ServerLoad
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import ApiError, bad_request, malformed, unavailable
from app.serving.http.response import Response, json_response
from app.serving.http.route import NO_DOCS, NO_MEDIA, Route, RouteDocs, probe
from config import VLLM_VERSION, ConfigError
from config.fake_metrics import FakeMetricsError, merged
from config.validation import LiveSettings

if TYPE_CHECKING:
    from urllib3 import PoolManager


T = TypeVar("T")
FAKE_METRICS = "fake-metrics"
"""The only setting that may be given in parts."""
TIMEOUT_S = 5.0
PASSED_ON = ("authorization", "x-admin-key", "content-type")
ANY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
"""vLLM mounts the metrics as a separate application, which ignores the method."""
Caches = Callable[[], Mapping[str, Bounded]]
"""The caches of a room, by name; some exist only after the start."""
Work = Callable[[RequestContext], object]


class Drains(Protocol):
    withdrawn: bool

    @property
    def draining(self) -> bool: ...

    @property
    def healthy(self) -> bool: ...

    def drain(self) -> None: ...


def readiness(service: Drains, clock: Clock, startup_s: float) -> Callable[[], bool]:
    """Returns a check that is true from `startup_s` seconds after now until `service` withdraws."""
    ready_at_s = clock.now() + startup_s

    def is_ready() -> bool:
        is_ending = service.withdrawn or service.draining
        return clock.now() >= ready_at_s and service.healthy and not is_ending

    return is_ready


EMPTY_ANSWER = RouteDocs(media=NO_MEDIA)
ANY_OBJECT = dict[str, object]
"""Type of a body that may be any JSON object."""


class RanksQuery(Struct):
    """Queries of settings and draining; the handlers read them without this type."""

    check: bool = False
    ranks: Literal["all"] | None = None


def action(operation: str, work: Work, docs: RouteDocs = NO_DOCS) -> Route:
    """Returns the route of "METHOD /path" that answers the JSON that `work` returns, or an empty
    200.
    """

    def handle(context: RequestContext) -> Response:
        answer = work(context)
        return Response() if answer is None else json_response(answer)

    handle.__doc__ = work.__doc__
    method, _, path = operation.partition(" ")
    return Route(methods=(method,), path=path, handle=handle, docs=docs)


def json_body(data: bytes, kind: type[T]) -> T:
    """Returns the JSON of a body as `kind`. ApiError 400 for anything else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"body: {error}", "body") from None


def health_routes(
    healthy: Callable[[], bool], ready: Callable[[], bool], load: ServerLoad
) -> list[Route]:

    def health(context: RequestContext) -> Response:
        """200 as long as the process serves at all; 503 while a separate engine process is gone."""
        return Response(b"", 200 if healthy() else 503)

    def health_ready(context: RequestContext) -> Response:
        """200 when requests are welcome; 503 while starting up and while draining."""
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

    def metrics(context: RequestContext) -> Response:
        """All families in Prometheus' text format."""
        return Response(exposition.render(), 200, content_type=CONTENT_TYPE)

    return [Route(methods=ANY_METHOD, path="/metrics", handle=metrics)]


def memory_routes(rooms: Iterable[Caches]) -> list[Route]:
    """`rooms` is read anew at each request: it may grow."""

    def memory(context: RequestContext) -> object:
        """Bytes of each cache, and their sum."""
        caches = {name: cache for room in rooms for name, cache in room().items()}
        sizes = {
            name: {"size_bytes": cache.size_bytes, "limit_bytes": cache.limit_bytes}
            for name, cache in sorted(caches.items())
        }
        sums = {
            key: sum(size[key] for size in sizes.values()) for key in ("size_bytes", "limit_bytes")
        }
        return {**sums, "caches": sizes}

    return [action("GET /admin/memory", memory)]


def routes(
    live: LiveSettings,
    lifecycle: Operations,
    service: EngineClient,
    body: BodyLimits,
    siblings: PeerRanks,
) -> list[Route]:
    """Returns the routes.

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
        values = json_body(data := body.read(context), dict[str, Any])
        try:
            if FAKE_METRICS in values:
                fake_metrics = live.current.metrics.fake_metrics
                values[FAKE_METRICS] = merged(fake_metrics, values[FAKE_METRICS])
            changed = live.changed(values)
        except (ConfigError, FakeMetricsError) as error:
            raise bad_request(f"{error}.") from None
        if context.query().get("check") == "true":
            return changed.dump()
        if context.query().get("ranks") == "all":  # all ranks must agree before any changes
            siblings.ask(context.method, "/admin/config?check=true", context.headers, data)
        return siblings.answers(context, live.change(values).dump(), data)

    def drain(context: RequestContext) -> object:
        """Stops admitting requests and reports not ready; running requests continue."""
        service.drain()
        counts = {"running": service.running, "waiting": service.waiting}
        return siblings.answers(context, {"status": "draining", **counts})

    change_docs = RouteDocs(body=(ANY_OBJECT,), example={"log-http": False}, query=RanksQuery)
    return [
        action("GET /admin/config", config, RouteDocs(query=RanksQuery)),
        action("GET /admin/config/live", live_help),
        action("POST /admin/config", change, change_docs),
        action("POST /admin/drain", drain, RouteDocs(query=RanksQuery)),
    ]


class PeerRanks:
    """The other ranks of this server, by number and base URL, which requests with `?ranks=all`
    reach, too.
    """

    def __init__(self, own: int, others: Sequence[tuple[int, str]]) -> None:
        self.own = own
        self._others = others
        self._pool: PoolManager | None = None
        if others:
            from urllib3 import PoolManager  # a slow import, and most servers have one rank

            self._pool = PoolManager(timeout=TIMEOUT_S, retries=False, cert_reqs="CERT_NONE")

    def answers(self, context: RequestContext, own: object, body: bytes = b"") -> object:
        """Returns `own`, our answer; with `?ranks=all` every rank's answer, by rank.

        Raises like `ask`.
        """
        if context.query().get("ranks") != "all":
            return own
        passed = [
            part for part in context.target.partition("?")[2].split("&") if part != "ranks=all"
        ]
        path = "?".join(filter(None, (context.path, "&".join(passed))))
        others = self.ask(context.method, path, context.headers, body)
        return dict(sorted({str(self.own): own, **others}.items()))

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> dict[str, Any]:
        """Returns the JSON answers of the other ranks, by rank.

        ApiError with the status and message of the first rank that refuses; 503 for one that does
        not answer.
        """
        kept = {name: headers[name] for name in PASSED_ON if name in headers}
        return {
            str(rank): self._ask(rank, method, url + path, kept, body) for rank, url in self._others
        }

    def _ask(
        self, rank: int, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> Any:
        from urllib3.exceptions import HTTPError

        assert self._pool is not None
        try:
            answer = self._pool.request(method, url, headers=headers, body=body)
            told = answer.json()
        except (HTTPError, ValueError) as error:
            raise unavailable(f"Rank {rank} does not answer: {error}") from None
        if answer.status == 200:
            return told
        wrong = told.get("error") if isinstance(told, dict) else None
        known = wrong if isinstance(wrong, dict) else {"message": f"status {answer.status}"}
        raise ApiError(
            answer.status, known.get("type", "Error"), f"Rank {rank}: {known.get('message')}"
        )
