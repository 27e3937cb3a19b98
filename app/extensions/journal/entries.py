"""The entries of the journal: the last requests and their replies."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from heapq import merge
from itertools import count
from operator import attrgetter
from sys import getsizeof

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from app.core.base.clock.pause import Pace, call_long
from app.core.engine.request import EngineRequest, SequenceOutcome, Watch
from app.core.protocol.common import encode_to_keep
from app.core.server.http.context import SCOPE, RequestContext
from app.core.server.http.response import Response
from app.core.server.http.rpc import RpcResponse
from app.core.server.middleware.foreign_pages import OPERATOR_PREFIXES
from app.core.server.middleware.masking import mask_text
from app.extensions.journal.sends import SendLog, stamped
from app.extensions.journal.wall_clock import WallClock

MAX_BODY_BYTES = 4 << 20
"""Largest body that an entry stores, in bytes."""
MAX_TEXT_LENGTH = 1 << 20
"""Longest reply that an entry stores, in characters."""
MAX_NAME_LENGTH = 256
"""Most characters of an id, a path, a scope or a content type."""
ENTRY_BYTES = 1024
"""Estimated memory of an entry without body and reply, in bytes."""
CHOICE_BYTES = 128
"""Estimated memory of a choice without its text, in bytes."""
COMPLETION_PREFIX = "cmpl-"
GRPC = "grpc"
"""Way of requests whose answers are not sent by the hub."""
FIRST_ERROR_STATUS = 400
MAX_ERROR_BYTES = 1 << 16
"""Longest body of an error from which an entry gets its message, in bytes."""
MAX_ERROR_LENGTH = 2000
"""Most characters of this message."""
UNMATCHED = "X-Understudy-Unmatched"
"""Header of an error for a request that no rule of a script answers."""
USAGE_NAMES = ("prompt_tokens", "completion_tokens", "total_tokens")
MAX_STRANGERS = 100
"""Most entries of requests without a key, where the server has keys."""
STRANGERS_BYTES = 1 << 20
"""Most bytes of these entries."""
MAX_STRANGER_BODY_BYTES = 1 << 16
"""Largest body that one of these entries stores, in bytes."""


class Entry(Struct, kw_only=True):
    """An entry as GET /admin/journal shows it; docs/testing.md has the fields."""

    id: str
    response_id: str | None = None
    """Id in the body of the answer; None if no choice reached the engine."""
    at: str
    """Arrival in UTC; written when the entry is shown."""
    route: str
    model: str | None = None
    status: int | None = None
    rule: str | None = None
    scope: str | None = None
    request: Raw = Raw()
    text: str | None = None
    usage: dict[str, int] | None = None
    arrived_s: float = 0.0
    """Arrival, like all moments in Unix seconds."""
    queued_s: float | None = None
    """When the scheduler saw the first choice; known once a choice ends, like the next ones."""
    scheduled_s: float | None = None
    """When the first choice left the queue."""
    first_s: float | None = None
    """When the engine had the first token of any choice."""
    last_s: float | None = None
    """When the engine had the last token of any choice."""
    sends_s: list[float] | None = None
    """When parts of the answer were handed to the connection; written when the entry is shown."""
    cached_tokens: int | None = None
    """Prompt tokens from the prefix cache."""
    preemptions: int | None = None
    """Preemptions of all choices."""
    error: str | None = None
    """Message of an error that was answered."""
    unmatched: bool = False
    """True for the error of a request that no rule of a script answers."""


class JournaledRequest(Struct, eq=False):
    """A request and its entry, which is completed as the answer begins and choices end."""

    entry: Entry
    context: RequestContext | None
    """The request until its answer begins."""
    offset_s: float
    """Difference from monotonic seconds to Unix seconds."""
    ring: "Ring"
    number: int
    """Position in the order of arrival."""
    body: bytes = b""
    """The body until it is masked as the entry's `request`."""
    content_type: str = ""
    texts: dict[int, str] = {}
    sends: SendLog | None = None
    """Moments of the answer; None until it begins, and for gRPC."""
    size_bytes: int = 0
    is_stored: bool = True
    """False once the request has been dropped from its ring."""


class Ring(Struct, eq=False):
    """The last requests, up to a number of entries and bytes; the oldest are dropped first."""

    max_requests: int
    limit_bytes: int
    max_body_bytes: int
    size_bytes: int = 0
    requests: deque[JournaledRequest] = field(default_factory=deque)

    def append(self, request: JournaledRequest) -> None:
        """Adds a request, and drops older ones above the limits."""
        self.requests.append(request)
        self.grow(request, ENTRY_BYTES)

    def grow(self, request: JournaledRequest, more_bytes: int) -> None:
        """Adds to the size of a request, which may have been dropped."""
        request.size_bytes += more_bytes
        if request.is_stored:
            self.size_bytes += more_bytes
        while len(self.requests) > self.max_requests or self.size_bytes > self.limit_bytes:
            self._drop(self.requests.popleft())

    def clear(self, scope: str | None) -> None:
        """Drops all requests, or only a scope's."""
        requests = self.requests
        self.requests = deque()
        for request in requests:
            if scope in (None, request.entry.scope or ""):
                self._drop(request)
            else:
                self.requests.append(request)

    def _drop(self, request: JournaledRequest) -> None:
        request.is_stored = False
        self.size_bytes -= request.size_bytes


class Entries:
    """Stores the last `max_entries` POST requests that are not for operators.

    Requests without a key, where the server has keys, are in a small second ring: strangers cannot
    evict the requests of clients with a key.
    """

    def __init__(
        self,
        max_entries: int,
        now: Callable[[], float],
        unix: Callable[[], float],
        bears_key: Callable[[RequestContext], bool],
        limit_bytes: int,
    ) -> None:
        """`now` returns the monotonic seconds of the engine, `unix` the seconds since 1970.

        `bears_key` returns True for a request with a key, or if the server has none.
        """
        self._now = now
        self._wall_clock = WallClock(now, unix)
        self._bears_key = bears_key
        self._clients = Ring(
            max_requests=max_entries,
            limit_bytes=limit_bytes - STRANGERS_BYTES,
            max_body_bytes=MAX_BODY_BYTES,
        )
        self._strangers = Ring(
            max_requests=min(max_entries, MAX_STRANGERS),
            limit_bytes=STRANGERS_BYTES,
            max_body_bytes=MAX_STRANGER_BODY_BYTES,
        )
        self._numbers = count()

    @property
    def size_bytes(self) -> int:
        """Estimated memory of all entries."""
        return self._clients.size_bytes + self._strangers.size_bytes

    def begin(self, context: RequestContext) -> None:
        """Adds an entry for the request."""
        if context.method != "POST" or context.path.startswith(OPERATOR_PREFIXES):
            return
        scope = context.headers.get(SCOPE)
        offset_s = self._wall_clock.offset_s()
        entry = Entry(
            id=context.request_id[:MAX_NAME_LENGTH],
            at="",
            route=context.path[:MAX_NAME_LENGTH],
            scope=scope and scope[:MAX_NAME_LENGTH],
            arrived_s=rounded(offset_s + context.arrival_s),
        )
        ring = self._clients if self._bears_key(context) else self._strangers
        request = JournaledRequest(
            entry=entry,
            context=context,
            offset_s=offset_s,
            ring=ring,
            number=next(self._numbers),
            content_type=(context.content_type or "")[:MAX_NAME_LENGTH],
        )
        context.keep(request)
        context.observers = (*context.observers, partial(self._observe, request))
        ring.append(request)

    def end(self, context: RequestContext, response: Response) -> None:
        """Completes the entry with the status and the body, and notes the writes of the answer."""
        request = context.kept(JournaledRequest)
        if request is None:
            return
        body = context.part if context.body is None else context.body
        request.entry.status = response.status
        request.entry.rule = context.rule or None
        request.context = None
        if len(body) <= request.ring.max_body_bytes:
            request.body = body
        if response.status >= FIRST_ERROR_STATUS:
            request.entry.error = error_of(response)
            request.entry.unmatched = UNMATCHED in response.headers
        request.ring.grow(request, len(request.body) + getsizeof(request.entry.error))
        if context.way != GRPC:
            request.sends = SendLog(self._now, partial(request.ring.grow, request))
            response.body = stamped(response.body, request.sends)

    def _observe(self, request: JournaledRequest, choice: EngineRequest) -> Watch:
        request.entry.model = choice.model
        if request.entry.response_id is None:
            # A completion appends the number of its prompt.
            response_id = choice.request_id.removesuffix(f"-{choice.index // choice.n}")
            if not response_id.startswith(COMPLETION_PREFIX):
                response_id = choice.request_id
            request.entry.response_id = response_id[:MAX_NAME_LENGTH]
        if choice.index % choice.n == 0:
            self._count(request.entry, "prompt_tokens", len(choice.prompt_ids))
        return partial(self._ended, request, choice.index, choice.n)

    def _ended(
        self, request: JournaledRequest, index: int, n: int, outcome: SequenceOutcome
    ) -> None:
        text = outcome.text[:MAX_TEXT_LENGTH]
        request.texts[index] = text
        self._count(request.entry, "completion_tokens", outcome.tokens)
        add_moments(request.entry, outcome, request.offset_s)
        if index % n == 0:  # choices share their prompt
            request.entry.cached_tokens = (request.entry.cached_tokens or 0) + outcome.cached_tokens
        request.ring.grow(request, CHOICE_BYTES + getsizeof(text))

    def complete(
        self, context: RequestContext, model: str | None, text: str, usage: dict[str, int] | None
    ) -> None:
        """Completes the entry of a request that a recording answers."""
        request = context.kept(JournaledRequest)
        if request is None:
            return
        request.entry.model = model
        if usage:
            usage = {name: usage.get(name, 0) for name in USAGE_NAMES}
        request.entry.usage = usage
        request.texts = {0: text[:MAX_TEXT_LENGTH]}
        request.ring.grow(request, CHOICE_BYTES + getsizeof(request.texts[0]))

    def _count(self, entry: Entry, name: str, tokens: int) -> None:
        if entry.usage is None:
            entry.usage = dict.fromkeys(USAGE_NAMES, 0)
        entry.usage[name] += tokens
        entry.usage["total_tokens"] += tokens

    def rows(
        self, route: str | None, contains: str, scope: str | None, limit: int | None = None
    ) -> Sequence[Raw]:
        """Returns the last `limit` entries, the oldest first, whose body has the text `contains`.

        Pauses while it searches.
        """
        needle = msgspec.json.encode(contains)[1:-1]
        pace = Pace(time.monotonic)
        rows: list[Raw] = []
        # Both rings may change during a pause.
        rings = [reversed(list(ring.requests)) for ring in (self._clients, self._strangers)]
        for request in merge(*rings, key=attrgetter("number"), reverse=True):
            pace()
            entry = request.entry
            if len(rows) == limit:
                break
            if route in (None, entry.route) and scope in (None, entry.scope or ""):
                self._update(request)
                if needle in bytes(entry.request):
                    shown = replace(
                        entry, at=utc_text(entry.arrived_s), sends_s=moments_of(request)
                    )
                    rows.append(Raw(msgspec.json.encode(shown)))
        return rows[::-1]

    def _update(self, request: JournaledRequest) -> None:
        """Masks the reply as far as it has arrived, and the body, once it is complete."""
        entry = request.entry
        context = request.context
        entry.text = None
        if request.texts:
            text = "\n".join(text for _, text in sorted(request.texts.items()))
            entry.text = call_long(len(text), mask_text, text)
        body = request.body
        if context is not None:
            body = context.body or b""
        if body or not bytes(entry.request):
            entry.request = Raw(call_long(len(body), masked_json, body, request.content_type))
        if context is None and request.body:
            request.body = b""
            request.ring.grow(request, len(bytes(entry.request)) - len(body))

    def clear(self, scope: str | None = None) -> None:
        """Drops all entries, or only a scope's."""
        for ring in (self._clients, self._strangers):
            ring.clear(scope)


def rounded(moment_s: float) -> float:
    """Returns a moment rounded to microseconds: a float of Unix seconds holds no more."""
    return round(moment_s, 6)


def add_moments(entry: Entry, outcome: SequenceOutcome, offset_s: float) -> None:
    """Adds the moments of a choice that has ended: the first ones of all choices, and the last."""
    entry.queued_s = _first(entry.queued_s, outcome.queued_s, offset_s)
    entry.scheduled_s = _first(entry.scheduled_s, outcome.scheduled_s, offset_s)
    entry.first_s = _first(entry.first_s, outcome.first_token_s, offset_s)
    if outcome.last_token_s is not None:
        last_s = rounded(outcome.last_token_s + offset_s)
        entry.last_s = max(last_s, entry.last_s or last_s)
    entry.preemptions = (entry.preemptions or 0) + outcome.preemptions


def _first(unix_s: float | None, moment_s: float | None, offset_s: float) -> float | None:
    """Returns the earlier one of a moment in Unix seconds and one in monotonic seconds."""
    if moment_s is None:
        return unix_s
    moment_unix_s = rounded(moment_s + offset_s)
    if unix_s is None:
        return moment_unix_s
    return min(unix_s, moment_unix_s)


def moments_of(request: JournaledRequest) -> list[float] | None:
    """Returns the moments of an answer in Unix seconds; None before it begins."""
    if request.sends is None:
        return None
    return [rounded(moment_s + request.offset_s) for moment_s in request.sends.moments]


def error_of(response: Response) -> str | None:
    """Returns the masked message of an error; None for a body of another form."""
    if isinstance(response, RpcResponse):
        return mask_text(response.outcome.message[:MAX_ERROR_LENGTH]) or None
    return error_message(response.body)


def error_message(body: object) -> str | None:
    """Returns the masked message of an error's body; None for a body of another form."""
    if not isinstance(body, bytes) or len(body) > MAX_ERROR_BYTES:
        return None
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    error = content.get("error", content)
    message = content.get("detail")
    if isinstance(error, dict) and "message" in error:
        message = error["message"]
    if not isinstance(message, str):
        return None
    return mask_text(message[:MAX_ERROR_LENGTH])


def utc_text(unix_s: float) -> str:
    """Returns a time in ISO 8601, in UTC with milliseconds."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def masked_json(body: bytes, content_type: str = "") -> bytes:
    """Returns a body as compact JSON with its secrets masked.

    A body that is not JSON becomes a string, and one that is not text becomes null.
    """
    try:
        text = mask_text(body.decode(), content_type=content_type)
    except UnicodeDecodeError:
        return b"null"
    try:
        return encode_to_keep(msgspec.json.decode(text))
    except (ValueError, OverflowError, RecursionError):
        if not text or "\0" in text:
            return b"null"
        return encode_to_keep(text)
