"""The journal: the last requests and their replies, for tests of clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware

if TYPE_CHECKING:
    from msgspec import Raw

    from app.extensions.journal.entries import Entries

LIMIT_BYTES = 16 << 20
"""Most bytes of all entries."""


def _has_no_keys(context: RequestContext) -> bool:
    return True


def _ignores_nothing(path: str, body: bytes) -> Sequence[str]:
    return ()


class Journal(Middleware):
    """Passes requests and answers to its entries; without room for entries, it is not active."""

    limit_bytes = LIMIT_BYTES

    def __init__(
        self,
        max_entries: int,
        now: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
        bears_key: Callable[[RequestContext], bool] = _has_no_keys,
        ignored_fields: Callable[[str, bytes], Sequence[str]] = _ignores_nothing,
    ) -> None:
        """`now` returns the monotonic seconds of the engine, `unix` the seconds since 1970.

        `bears_key` returns True for a request with a key, or if the server has none.
        `ignored_fields` returns the fields that the played version of vLLM does not have; it gets
        the path and the body of a request.
        """
        self.active = max_entries > 0
        self.caches = {"journal": self}
        self._entries: Entries | None = None
        if self.active:
            from app.extensions.journal.entries import Entries

            self._entries = Entries(
                max_entries,
                now=now,
                unix=unix,
                bears_key=bears_key,
                ignored_fields=ignored_fields,
                limit_bytes=LIMIT_BYTES,
            )

    @property
    def size_bytes(self) -> int:
        """Estimated memory of all entries."""
        return 0 if self._entries is None else self._entries.size_bytes

    def begin(self, context: RequestContext) -> None:
        """Adds an entry for the request."""
        if self._entries is not None:
            self._entries.begin(context)

    def end(self, context: RequestContext, response: Response) -> None:
        """Completes the entry with the status and the body."""
        if self._entries is not None:
            self._entries.end(context, response)

    def complete(
        self, context: RequestContext, model: str | None, text: str, usage: dict[str, int] | None
    ) -> None:
        """Completes the entry of a request that a recording answers."""
        if self._entries is not None:
            self._entries.complete(context, model, text, usage)

    def rows(
        self, route: str | None, contains: str, scope: str | None, limit: int | None = None
    ) -> Sequence[Raw]:
        """Returns the last `limit` entries, the oldest first, whose body has the text `contains`.

        Pauses while it searches.
        """
        if self._entries is None:
            return ()
        return self._entries.rows(route, contains, scope, limit)

    def clear(self, scope: str | None = None) -> None:
        """Drops all entries, or only a scope's."""
        if self._entries is not None:
            self._entries.clear(scope)
