"""Responses that are kept in memory, so that they can be read, continued, followed and cancelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
from cachetools import LRUCache

from app.api.responses.event_log import EventLog
from app.api.responses.response_object import Response
from app.http.errors import ApiError
from app.protocol.messages import Message

MOST_RESPONSES = 1000
MOST_BYTES = 256 << 20
UNFINISHED = ("queued", "in_progress")


@dataclass(slots=True)
class KeptResponse:
    """A response in its present state, and the messages that it answers.

    `log` and `abort` are those of a generation in the background; `log` only if its events were asked for.
    """

    response: Response
    messages: Sequence[Message]
    log: EventLog | None = None
    abort: Callable[[], None] | None = None
    _asked_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self._asked_bytes = len(msgspec.json.encode(self.messages))

    @property
    def size(self) -> int:
        """About as many bytes as it takes."""
        told = len(msgspec.json.encode(self.response)) + (self.log.size if self.log else 0)
        return self._asked_bytes + told

    def cancel(self) -> None:
        """End the generation. ApiError 400 when it is over, or was never in the background."""
        if self.abort is None or self.response["status"] not in UNFINISHED:
            raise invalid("The response is not being generated in the background.", "response_id")
        self.abort()
        self.response = {**self.response, "status": "cancelled"}
        if self.log is not None:
            self.log.end()


class ResponseStore:
    """Keeps up to `most` responses and `most_bytes`; which was touched longest ago is forgotten first.

    Without `keeps` it is always empty.
    """

    def __init__(self, keeps: bool, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self.keeps = keeps
        # Each weighs at least its share, and what is too large for the store takes all of it.
        self._kept: LRUCache[str, KeptResponse] = LRUCache(
            most_bytes, lambda kept: min(max(kept.size, most_bytes // most), most_bytes)
        )

    def get(self, response_id: str) -> KeptResponse:
        """The response of this id. ApiError 404 when it is not there (any more)."""
        kept = self._kept.get(response_id)
        if kept is None:
            raise invalid(f"There is no response {response_id[:80]!r} here.", "response_id", 404)
        return kept

    def keep(self, kept: KeptResponse) -> None:
        """Keep a response, in place of any of the same id."""
        if self.keeps:
            self._kept[kept.response["id"]] = kept

    def weigh(self, kept: KeptResponse) -> None:
        """Take note that `kept` has changed; nothing happens when it is forgotten already."""
        if self._kept.get(kept.response["id"]) is kept:
            self.keep(kept)


def invalid(message: str, param: str, status: int = 400) -> ApiError:
    """An error of vLLM's handlers of this family, which have a type of their own."""
    return ApiError(status, "invalid_request_error", message, param)
