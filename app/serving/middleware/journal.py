"""The journal: the last requests and their replies, for a test that asks what its client has sent."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from sys import getsizeof

import msgspec
from msgspec import Raw, Struct

from app.base.clock.pause import Pace, call_long
from app.engine.core.request import EngineRequest, SequenceOutcome, Watch
from app.serving.http.context import SCOPE, RequestContext
from app.serving.http.response import Response
from app.serving.middleware.access import OURS
from app.serving.middleware.masking import mask_text
from app.serving.middleware.stack import Middleware

MOST_BYTES, MOST_TEXT = 4 << 20, 1 << 20
"""Largest body in bytes, and longest reply in characters, that an entry keeps."""
MOST_NAME = 256
"""Most characters of an id, a path or a scope."""
ENTRY_BYTES, CHOICE_BYTES = 1024, 128
"""Estimated memory of an entry without body and reply, and of a choice without its text, in bytes."""


class Entry(Struct, kw_only=True):
    """An entry as GET /admin/journal shows it; docs/testing.md has the fields."""

    id: str
    at: str
    route: str
    model: str | None = None
    status: int | None = None
    rule: str | None = None
    scope: str | None = None
    request: Raw = Raw()
    text: str | None = None
    usage: dict[str, int] | None = None


class JournaledRequest(Struct, eq=False):
    """A request from its arrival on; its entry is completed as the answer begins and choices end."""

    entry: Entry
    context: RequestContext | None
    """The request until its answer begins."""
    body: bytes = b""
    """The body until it is masked as the entry's `request`."""
    texts: dict[int, str] = {}
    size_bytes: int = ENTRY_BYTES
    is_kept: bool = True


class Journal(Middleware):
    """Keeps the last `most` POST requests that are not for operators, in order of arrival."""

    limit_bytes = 16 << 20

    def __init__(self, most: int, unix: Callable[[], float] = time.time) -> None:
        self.active, self._most, self._unix = most > 0, most, unix
        self.caches = {"journal": self}
        self.size_bytes = 0
        self._requests: deque[JournaledRequest] = deque()

    def begin(self, context: RequestContext) -> None:
        if context.method == "POST" and not context.path.startswith(OURS):
            at, scope = datetime.fromtimestamp(self._unix(), UTC), context.headers.get(SCOPE)
            entry = Entry(
                id=context.request_id[:MOST_NAME],
                at=at.isoformat(timespec="milliseconds"),
                route=context.path[:MOST_NAME],
                scope=scope and scope[:MOST_NAME],
            )
            request = JournaledRequest(entry, context)
            context.keep(request)
            context.observers = (*context.observers, partial(self._observe, request))
            self._requests.append(request)
            self.size_bytes += ENTRY_BYTES
            self._grow(request, 0)

    def end(self, context: RequestContext, response: Response) -> None:
        if (request := context.kept(JournaledRequest)) is not None:
            body = context.part if context.body is None else context.body
            request.entry.status, request.entry.rule = response.status, context.rule or None
            request.context, request.body = None, body if len(body) <= MOST_BYTES else b""
            self._grow(request, len(request.body))

    def _observe(self, request: JournaledRequest, choice: EngineRequest) -> Watch:
        request.entry.model = choice.model
        if choice.index % choice.n == 0:
            self._count(request.entry, "prompt_tokens", len(choice.prompt_ids))
        return partial(self._ended, request, choice.index)

    def _ended(self, request: JournaledRequest, index: int, outcome: SequenceOutcome) -> None:
        request.texts[index] = text = outcome.text[:MOST_TEXT]
        self._count(request.entry, "completion_tokens", outcome.tokens)
        self._grow(request, CHOICE_BYTES + getsizeof(text))

    def note(
        self, context: RequestContext, model: str | None, text: str, usage: dict[str, int] | None
    ) -> None:
        """Completes the entry of a request that a recording answers."""
        if (request := context.kept(JournaledRequest)) is not None:
            names = "prompt_tokens", "completion_tokens", "total_tokens"
            request.entry.model, request.texts = model, {0: text[:MOST_TEXT]}
            request.entry.usage = usage and {name: usage.get(name, 0) for name in names}
            self._grow(request, CHOICE_BYTES + getsizeof(request.texts[0]))

    def _count(self, entry: Entry, name: str, tokens: int) -> None:
        if entry.usage is None:
            entry.usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        entry.usage[name] += tokens
        entry.usage["total_tokens"] += tokens

    def _grow(self, request: JournaledRequest, more_bytes: int) -> None:
        """Adds to the size of a request; the oldest ones make room."""
        request.size_bytes += more_bytes
        if request.is_kept:
            self.size_bytes += more_bytes
        while len(self._requests) > self._most or self.size_bytes > self.limit_bytes:
            self._drop(self._requests.popleft())

    def _drop(self, request: JournaledRequest) -> None:
        request.is_kept = False
        self.size_bytes -= request.size_bytes

    def rows(
        self, route: str | None, contains: str, scope: str | None, limit: int | None = None
    ) -> Sequence[Raw]:
        """Returns the last `limit` entries, the oldest first, whose body has the text `contains`. Pauses."""
        needle, pace, found = msgspec.json.encode(contains)[1:-1], Pace(time.monotonic), list[Raw]()
        for request in reversed(list(self._requests)):
            pace()
            entry = request.entry
            if route in (None, entry.route) and scope in (None, entry.scope) and len(found) != limit:
                self._read(request)
                if needle in bytes(entry.request):
                    found.append(Raw(msgspec.json.encode(entry)))
        return found[::-1]

    def _read(self, request: JournaledRequest) -> None:
        """Masks the reply as far as it is known, and the body, once it is whole."""
        entry, context = request.entry, request.context
        text = "\n".join(text for _, text in sorted(request.texts.items()))
        entry.text = call_long(len(text), mask_text, text) if request.texts else None
        body = request.body if context is None else context.body or b""
        if body or not bytes(entry.request):
            entry.request = Raw(call_long(len(body), masked_json, body))
        if context is None and request.body:
            request.body = b""
            self._grow(request, len(bytes(entry.request)) - len(body))

    def clear(self, scope: str | None = None) -> None:
        """Forgets all entries, or only a scope's."""
        requests, self._requests = self._requests, deque()
        for request in requests:
            if scope in (None, request.entry.scope):
                self._drop(request)
            else:
                self._requests.append(request)


def masked_json(body: bytes) -> bytes:
    """Returns a body as compact JSON with its secrets masked: a string if it is no JSON, null if no text."""
    try:
        text = mask_text(body.decode())
    except UnicodeDecodeError:
        return b"null"
    try:
        return msgspec.json.encode(msgspec.json.decode(text))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return msgspec.json.encode(text) if text and "\0" not in text else b"null"
