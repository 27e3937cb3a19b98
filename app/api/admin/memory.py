"""GET /admin/memory: every cache in the process, what it holds and what it may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from app.http.context import RequestContext
from app.http.response import Response, json_response
from app.http.route import Route, get


class Bounded(Protocol):
    """Something that grows with what clients send, up to a limit; by its own reckoning, in bytes."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def limit_bytes(self) -> int: ...


Caches = Callable[[], Mapping[str, Bounded]]
"""The caches of a room, by name; some of them are there only after the start."""


def routes(rooms: Iterable[Caches]) -> list[Route]:
    """`rooms` is looked through at each request: it may grow."""

    def memory(context: RequestContext) -> Response:
        """Bytes of each cache, and of all of them."""
        caches = {name: cache for room in rooms for name, cache in room().items()}
        sizes = {
            name: {"size_bytes": cache.size_bytes, "limit_bytes": cache.limit_bytes}
            for name, cache in sorted(caches.items())
        }
        return json_response(
            {
                "size_bytes": sum(size["size_bytes"] for size in sizes.values()),
                "limit_bytes": sum(size["limit_bytes"] for size in sizes.values()),
                "caches": sizes,
            }
        )

    return [get("/admin/memory", memory)]
