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
from app.core.base.error_body import error_message
from app.core.engine.request import (
    EngineRequest,
    RequestMoments,
    ScriptedCall,
    SequenceOutcome,
    Watch,
    unix_moment_s,
)
from app.core.protocol.common import encode_to_keep
from app.core.server.http.context import SCOPE, RequestContext
from app.core.server.http.response import Response
from app.core.server.http.rpc import RpcResponse
from app.core.server.middleware.control_routes import OPERATOR_PREFIXES
from app.core.server.middleware.masking import mask_text
from app.extensions.journal.sends import LOG_BYTES, SendLog, stamped
from app.extensions.journal.wall_clock import WallClock
from config.untrusted import UntrustedDataError, decode_untrusted

MAX_BODY_BYTES = 4 << 20
"""Largest body that an entry stores, in bytes."""
MAX_TEXT_LENGTH = 1 << 20
"""Longest reply that an entry stores, in characters."""
MAX_NAME_LENGTH = 256
"""Most characters of an id, a path, a scope or a content type."""
ENTRY_BYTES = 1024
"""Estimated memory of an entry without body and reply, in bytes."""
CHOICE_BYTES = 256
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
DATASET_MISS = "X-Understudy-Dataset"
"""Header of an answer to a prompt that is not in the dataset."""
USAGE_NAMES = ("prompt_tokens", "completion_tokens", "total_tokens")
MAX_STRANGERS = 100
"""Most entries of requests without a key, where the server has keys."""
STRANGERS_BYTES = 1 << 20
"""Most bytes of these entries."""
MAX_STRANGER_BODY_BYTES = 1 << 16
"""Largest body that one of these entries stores, in bytes."""


class Entry(Struct, kw_only=True, frozen=True):
    """An entry as GET /admin/journal shows it; docs/testing.md has the fields."""

    id: str
    response_id: str | None
    """Id in the body of the answer; None if no choice reached the engine."""
    at: str
    """Arrival in UTC."""
    route: str
    model: str | None
    status: int | None
    rule: str | None
    scope: str | None
    request: Raw
    text: str | None
    tool_calls: list[Raw] | None
    """Calls that a script has decided, as name and arguments; None without calls."""
    usage: dict[str, int] | None
    arrived_s: float
    """Arrival, like all moments in Unix seconds."""
    queued_s: float | None
    """When the scheduler saw the first choice; known once a choice ends, like the next ones."""
    scheduled_s: float | None
    """When the first choice left the queue."""
    first_s: float | None
    """When the engine had the first token of any choice."""
    last_s: float | None
    """When the engine had the last token of any choice."""
    sends_s: list[float] | None
    """When parts of the answer were handed to the connection."""
    cached_tokens: int | None
    """Prompt tokens from the prefix cache."""
    preemptions: int | None
    """Preemptions of all choices."""
    error: str | None
    """Message of an error that was answered."""
    unmatched: bool
    """True for the error of a request that no rule of a script answers."""
    dataset_miss: bool
    """True if the prompt is not in the dataset."""
    ignored_fields: Sequence[str]
    """Fields of the request that the played version of vLLM does not have."""


class ChoiceOutcome(Struct):
    """The outcome of a choice of a request."""

    index: int
    is_first: bool
    """True for the first choice of a prompt."""
    outcome: SequenceOutcome


class JournaledRequest(Struct, eq=False, kw_only=True):
    """A request and its answer. `Entries` creates an `Entry` from both only when a client looks.

    All moments are in monotonic seconds.
    """

    id: str
    route: str
    scope: str | None
    content_type: str
    context: RequestContext | None
    """The request until its answer begins."""
    arrival_s: float
    offset_s: float
    """Difference from monotonic seconds to Unix seconds."""
    ring: "Ring"
    number: int
    """Position in the order of arrival."""
    body: bytes = b""
    """The body until it is masked."""
    masked_body: Raw = Raw()
    """The body as JSON without secrets, once a client has looked."""
    ignored_fields: Sequence[str] = ()
    """Fields that the played version does not have, once a client has looked."""
    response_id: str | None = None
    model: str | None = None
    status: int | None = None
    rule: str | None = None
    error: str | None = None
    unmatched: bool = False
    dataset_miss: bool = False
    prompt_tokens: int = 0
    outcomes: list["ChoiceOutcome"] = []
    """The choices that have ended."""
    calls: tuple[ScriptedCall, ...] = ()
    """Calls of the first choice that a script has decided."""
    recorded_text: str | None = None
    """Text of the answer of a recording."""
    usage: dict[str, int] | None = None
    """Usage of the answer of a recording."""
    send_moments: Sequence[float] | None = None
    """Moments of the answer; None until it begins, and for gRPC."""
    text_bytes: int = 0
    """Size of a few texts that came before the answer, and are added to `size_bytes` with it."""
    size_bytes: int = ENTRY_BYTES
    is_stored: bool = True
    """False once the request has been dropped from its ring."""

    def observe(self, choice: EngineRequest) -> Watch:
        """Notes a choice that reaches the engine, and returns the watch of its end."""
        self.model = choice.model
        if self.response_id is None:
            response_id = choice.request_id
            if response_id.startswith(COMPLETION_PREFIX):  # has the number of the prompt, too
                response_id = response_id.removesuffix(f"-{choice.index // choice.n}")
            self.response_id = response_id[:MAX_NAME_LENGTH]
        if choice.script is not None and not self.calls:
            self.calls = choice.script.calls
            self.text_bytes += sum(getsizeof(call.arguments) for call in self.calls)
        is_first = choice.index % choice.n == 0  # choices share their prompt
        if is_first:
            self.prompt_tokens += len(choice.prompt_ids)
        return partial(self._note_end, choice.index, is_first)

    def _note_end(self, index: int, is_first: bool, outcome: SequenceOutcome) -> None:
        """Notes the end of a choice; `is_first`: it is the first one of its prompt."""
        if len(outcome.text) > MAX_TEXT_LENGTH:
            outcome = replace(outcome, text=outcome.text[:MAX_TEXT_LENGTH])
        self.outcomes.append(ChoiceOutcome(index, is_first, outcome))
        self.text_bytes += CHOICE_BYTES + getsizeof(outcome.text)
        if self.context is None or self.text_bytes > ENTRY_BYTES:
            self.ring.grow(self, self.text_bytes)
            self.text_bytes = 0


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
        self.size_bytes += request.size_bytes
        # One is enough: each has at least the bytes that an entry begins with.
        if len(self.requests) > self.max_requests or self.size_bytes > self.limit_bytes:
            self._drop(self.requests.popleft())

    def grow(self, request: JournaledRequest, more_bytes: int) -> None:
        """Adds to the size of a request, which may have been dropped."""
        request.size_bytes += more_bytes
        if request.is_stored:
            self.size_bytes += more_bytes
            while self.size_bytes > self.limit_bytes:
                self._drop(self.requests.popleft())

    def clear(self, scope: str | None) -> None:
        """Drops all requests, or only a scope's."""
        requests = self.requests
        self.requests = deque()
        for request in requests:
            if scope in (None, request.scope or ""):
                self._drop(request)
            else:
                self.requests.append(request)

    def _drop(self, request: JournaledRequest) -> None:
        """Forgets a request. Frees its contents, since observers refer to it for longer."""
        request.is_stored = False
        self.size_bytes -= request.size_bytes
        request.body = b""
        request.masked_body = Raw()
        request.outcomes = []
        request.calls = ()
        request.recorded_text = None
        request.send_moments = None


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
        ignored_fields: Callable[[str, bytes], Sequence[str]],
        limit_bytes: int,
    ) -> None:
        """`now` returns the monotonic seconds of the engine, `unix` the seconds since 1970.

        `bears_key` returns True for a request with a key, or if the server has none.
        `ignored_fields` gets the path and the body of a request.
        """
        self._now = now
        self._ignored_fields = ignored_fields
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
        ring = self._clients if self._bears_key(context) else self._strangers
        request = JournaledRequest(
            id=context.request_id[:MAX_NAME_LENGTH],
            route=context.path[:MAX_NAME_LENGTH],
            scope=scope and scope[:MAX_NAME_LENGTH],
            content_type=context.headers.get("content-type", "")[:MAX_NAME_LENGTH],
            context=context,
            arrival_s=context.arrival_s,
            offset_s=self._wall_clock.offset_s(context.arrival_s),
            ring=ring,
            number=next(self._numbers),
        )
        context.keep(request)
        context.observers = (*context.observers, request.observe)
        ring.append(request)

    def end(self, context: RequestContext, response: Response) -> None:
        """Completes the entry with the status and the body, and notes the writes of the answer."""
        request = context.kept(JournaledRequest)
        if request is None:
            return
        ring = request.ring
        body = context.part if context.body is None else context.body
        request.status = response.status
        request.rule = context.rule or None
        request.dataset_miss = DATASET_MISS in response.headers
        request.context = None
        if len(body) <= ring.max_body_bytes:
            request.body = body
        if response.status >= FIRST_ERROR_STATUS:
            request.error = error_of(response)
            request.unmatched = UNMATCHED in response.headers
        error_bytes = getsizeof(request.error)
        ring.grow(request, len(request.body) + request.text_bytes + error_bytes + LOG_BYTES)
        if context.way == GRPC:
            return
        answer = response.body
        if isinstance(answer, bytes):  # sent next, but for the empty one if the client has left
            request.send_moments = (self._now(),) if answer else ()
        else:
            log = SendLog(self._now, partial(ring.grow, request))
            request.send_moments = log.moments
            response.body = stamped(answer, log)

    def complete(
        self, context: RequestContext, model: str | None, text: str, usage: dict[str, int] | None
    ) -> None:
        """Completes the entry of a request that a recording answers."""
        request = context.kept(JournaledRequest)
        if request is None:
            return
        request.model = model
        if usage:
            request.usage = {name: usage.get(name, 0) for name in USAGE_NAMES}
        request.recorded_text = text[:MAX_TEXT_LENGTH]
        request.ring.grow(request, CHOICE_BYTES + getsizeof(request.recorded_text))

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
            if len(rows) == limit:
                break
            if route in (None, request.route) and scope in (None, request.scope or ""):
                self._mask_body(request)
                if needle in bytes(request.masked_body):
                    rows.append(Raw(msgspec.json.encode(shown(request))))
        return rows[::-1]

    def _mask_body(self, request: JournaledRequest) -> None:
        """Masks the body: once, when it is complete."""
        context = request.context
        body = request.body
        if context is not None:
            body = context.body or b""
        if body or not bytes(request.masked_body):
            request.masked_body = Raw(call_long(len(body), masked_json, body, request.content_type))
            fields = call_long(len(body), self._ignored_fields, request.route, body)
            request.ignored_fields = fields
        if context is None and request.body:
            request.body = b""
            request.ring.grow(request, len(bytes(request.masked_body)) - len(body))

    def clear(self, scope: str | None = None) -> None:
        """Drops all entries, or only a scope's."""
        for ring in (self._clients, self._strangers):
            ring.clear(scope)


def shown(request: JournaledRequest) -> Entry:
    """Returns the entry of a request as far as its answer has come; its body must be masked."""
    choices = sorted(request.outcomes, key=attrgetter("index"))
    outcomes = [choice.outcome for choice in choices]
    text = request.recorded_text
    if outcomes:
        text = "\n".join(outcome.text for outcome in outcomes)
    if text is not None:
        text = call_long(len(text), mask_text, text)
    usage = request.usage
    if request.response_id is not None:
        counts = (request.prompt_tokens, sum(outcome.tokens for outcome in outcomes))
        usage = dict(zip(USAGE_NAMES, (*counts, sum(counts)), strict=True))
    cached = [choice.outcome.cached_tokens for choice in choices if choice.is_first]
    preemptions = [outcome.preemptions for outcome in outcomes]
    arrived_s = unix_moment_s(request.arrival_s, request.offset_s)
    moments = RequestMoments.of(outcomes, request.offset_s)
    return Entry(
        id=request.id,
        response_id=request.response_id,
        at=utc_text(arrived_s),
        route=request.route,
        model=request.model,
        status=request.status,
        rule=request.rule,
        scope=request.scope,
        request=request.masked_body,
        text=text,
        tool_calls=_shown_calls(request.calls),
        usage=usage,
        arrived_s=arrived_s,
        queued_s=moments.queued_s,
        scheduled_s=moments.scheduled_s,
        first_s=moments.first_s,
        last_s=moments.last_s,
        sends_s=_sends_s(request),
        cached_tokens=_total(cached),
        preemptions=_total(preemptions),
        error=request.error,
        unmatched=request.unmatched,
        dataset_miss=request.dataset_miss,
        ignored_fields=request.ignored_fields,
    )


def _shown_calls(calls: Sequence[ScriptedCall]) -> list[Raw] | None:
    """Returns the calls as JSON, with masked arguments; None without calls."""
    if not calls:
        return None
    rows = []
    for call in calls:
        arguments = mask_text(call.arguments[:MAX_TEXT_LENGTH])
        rows.append(Raw(msgspec.json.encode({"name": call.name, "arguments": arguments})))
    return rows


def _total(counts: Sequence[int]) -> int | None:
    """Returns the sum; None without counts."""
    if not counts:
        return None
    return sum(counts)


def _sends_s(request: JournaledRequest) -> list[float] | None:
    """Returns the moments of the answer in Unix seconds; None before it begins, and for gRPC."""
    if request.send_moments is None:
        return None
    return [unix_moment_s(moment_s, request.offset_s) for moment_s in request.send_moments]


def error_of(response: Response) -> str | None:
    """Returns the masked message of an error; None for a body of another form."""
    if isinstance(response, RpcResponse):
        return mask_text(response.outcome.message[:MAX_ERROR_LENGTH]) or None
    return masked_error(response.body)


def masked_error(body: object) -> str | None:
    """Returns the masked message of an error's body; None for a body of another form."""
    if not isinstance(body, bytes) or len(body) > MAX_ERROR_BYTES:
        return None
    message = error_message(body)
    if not message:
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
        return encode_to_keep(decode_untrusted(text))
    except (UntrustedDataError, OverflowError):
        if not text or "\0" in text:
            return b"null"
        return encode_to_keep(text)
