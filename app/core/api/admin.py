"""Routes of operators: settings of all ranks, draining, and the sizes of caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from msgspec import Struct

from app.core.api.peer_ranks import PeerRanks
from app.core.base import Bounded, Caches
from app.core.engine.client import EngineClient
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, malformed, sentence
from app.core.server.http.route import ANY_OBJECT, Route, RouteDocs, action
from config.machine import resident_bytes
from config.untrusted import UntrustedDataError, decode_untrusted
from config.validation import LiveSettings

T = TypeVar("T")


class RanksQuery(Struct):
    """Queries of settings and draining; the handlers read them without this type."""

    check: bool = False
    ranks: Literal["all"] | None = None


def json_body(data: bytes, body_type: type[T]) -> T:
    """Returns the JSON of a body as `body_type`.

    Raises:
        ApiError: 400 for anything else.
    """
    try:
        return decode_untrusted(data, type=body_type)
    except UntrustedDataError as error:
        raise malformed(f"body: {error}", "body") from None


def memory_routes(
    cache_sources: Iterable[Caches], request_memory: Callable[[], Bounded] | None
) -> list[Route]:
    """Returns the route of all caches. `cache_sources` is read at each request: it may grow."""

    def memory(context: RequestContext) -> object:
        """Bytes of each cache, their sum, and the resident memory of the process."""
        caches: dict[str, Bounded] = {}
        for source in cache_sources:
            caches.update(source())
        if request_memory is not None:
            caches["requests in flight"] = request_memory()
        sizes = {
            name: {"size_bytes": cache.size_bytes, "limit_bytes": cache.limit_bytes}
            for name, cache in sorted(caches.items())
        }
        return {
            "size_bytes": sum(size["size_bytes"] for size in sizes.values()),
            "limit_bytes": sum(size["limit_bytes"] for size in sizes.values()),
            "resident_bytes": resident_bytes(),
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
            for row in live.current.table.rows:
                if row.about.merge and row.name in values:
                    # A setting with parts keeps its other parts.
                    values[row.name] = row.about.merge(row.value(live.current), values[row.name])
            changed = live.changed(values)
        except ValueError as error:
            raise bad_request(sentence(error)) from None
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
