"""Sessions on POST /invocations, with the headers and statuses of SageMaker's hosting standards.

A body of only ``requestType`` opens or closes a session. A header names the session of every other
request. Sessions have no state besides their end: a session of vLLM stores files, which no route of
vLLM reads.
"""

from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from app.core.api.errors import error_response
from app.core.api.identity import Identity
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, malformed
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware
from app.extensions.sagemaker.body import parse_body

SESSION_ID = "x-amzn-sagemaker-session-id"
NEW_SESSION_ID = "X-Amzn-SageMaker-New-Session-Id"
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"
MAX_SESSIONS = 10_000
"""Most sessions; above, the oldest one ends."""
SESSION_BYTES = 250
"""Memory of a session's id and end in bytes."""


class SessionRequest(Struct, forbid_unknown_fields=True):
    """The body of a request that opens or closes a session."""

    request_type: Literal["NEW_SESSION", "CLOSE"] = msgspec.field(name="requestType")


class Sessions(Middleware):
    """Opens and closes sessions; passes other requests on, unless their session is unknown."""

    def __init__(self, body: BodyLimits, identity: Identity, expiration_s: int) -> None:
        self._body = body
        self._identity = identity
        self._expiration_s = expiration_s
        self._ends: dict[str, int] = {}
        """End of each session in Unix seconds, in order of opening."""
        self.caches = {"sagemaker sessions": self}

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the open sessions."""
        return SESSION_BYTES * len(self._ends)

    @property
    def limit_bytes(self) -> int:
        """Estimated memory of the most sessions."""
        return SESSION_BYTES * MAX_SESSIONS

    def begin(self, context: RequestContext) -> Response | None:
        """Answers a request that opens or closes a session, or that names an unknown one."""
        if context.path != "/invocations" or context.method != "POST":
            return None
        try:
            return self._answer(context)
        except ApiError as error:
            return error_response(error)

    def _answer(self, context: RequestContext) -> Response | None:
        request = _session_request(self._parsed(context))
        session_id = context.headers.get(SESSION_ID)
        if request is not None and request.request_type == "NEW_SESSION":
            return self._open()
        if session_id:
            self._check(session_id)
        if request is None:
            return None
        return self._close(session_id)

    def _parsed(self, context: RequestContext) -> object:
        """Returns the JSON of the body; None for another body, which the route rejects.

        Raises:
            ApiError: 408 or 413.
        """
        self._body.read(context)
        try:
            return parse_body(context, self._body)
        except ApiError:
            return None

    def _open(self) -> Response:
        now_s = self._identity.now_s()
        while self._ends:
            oldest_id, oldest_end_s = next(iter(self._ends.items()))
            if oldest_end_s >= now_s and len(self._ends) < MAX_SESSIONS:
                break
            del self._ends[oldest_id]
        session_id = str(UUID(self._identity.fresh_id() + self._identity.fresh_id(), version=4))
        end_s = now_s + self._expiration_s
        self._ends[session_id] = end_s
        expiration = datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        headers = {NEW_SESSION_ID: f"{session_id}; Expires={expiration}"}
        return Response(f"Session {session_id} created".encode(), headers=headers)

    def _check(self, session_id: str) -> None:
        """Raises `ApiError` 400 for an unknown session; one that has expired ends and passes."""
        end_s = self._ends.get(session_id)
        if end_s is None:
            raise malformed(f"Bad request: session not found: {session_id}")
        if end_s < self._identity.now_s():
            del self._ends[session_id]

    def _close(self, session_id: str | None) -> Response:
        problem = ""
        if not session_id:
            problem = f"invalid session_id: {session_id}"
        elif self._ends.pop(session_id, None) is None:
            problem = f"session not found: {session_id}"
        if problem:
            raise ApiError(424, "Failed Dependency", f"Failed to close session: {problem}")
        headers = {CLOSED_SESSION_ID: str(session_id)}
        return Response(f"Session {session_id} closed".encode(), headers=headers)


def _session_request(values: object) -> SessionRequest | None:
    """Returns the request about a session in the JSON of a body, or None for any other body.

    Raises:
        ApiError: 400 for a body with `requestType` that is invalid.
    """
    if not isinstance(values, dict) or "requestType" not in values:
        return None
    try:
        return msgspec.convert(values, SessionRequest)
    except msgspec.ValidationError as error:
        raise malformed(f"Invalid requestType: {error}") from None
