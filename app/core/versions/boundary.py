"""Turns the answers of a route, which are the newest vLLM's, into those of an older version.

Imported only for a version with such changes. A handler answers as it always does; the boundary
decodes the answer, applies the changes of each later release, the newest first, and encodes it
again. Streams are written by the greenlet of their request, event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from app.core.api.errors import as_api_error
from app.core.protocol.common import encode
from app.core.server.http.errors import ApiError
from app.core.server.http.event_stream import EventReader
from app.core.server.http.response import EVENT_STREAM, Response, StreamingBody, event_of

if TYPE_CHECKING:
    from app.core.protocol.coercion import JsonObject
    from app.core.server.http.context import RequestContext
    from app.core.server.http.route import Route
    from app.core.versions.change import Answer, Event

decode_json = msgspec.json.Decoder().decode
TEXT = "text/plain; charset=utf-8"
ToEvents = Callable[["Event"], Iterable["Event"]]


class TextError(ApiError):
    """An error whose answer is its message alone."""


def bounded_route(route: Route, answers: Sequence[Answer]) -> Route:
    """Returns the route with the answers of the older version."""

    def handle(context: RequestContext) -> Response:
        try:
            response = route.handle(context)
            request = _request_of(context)
            return older_response(response, request, _concerned(answers, request))
        except Exception as error:
            request = _request_of(context)
            concerned = _concerned(answers, request)
            if all(answer.failure is None for answer in concerned):
                raise
            older = older_error(as_api_error(error), request, concerned)
            if isinstance(older, TextError):
                return Response(older.message.encode(), older.status, content_type=TEXT)
            raise older from None

    handle.__doc__ = route.handle.__doc__
    plain = route.plain
    for answer in answers:
        if answer.only is None and (answer.edit or answer.whole or answer.events):
            plain = None
    return replace(route, handle=handle, plain=plain)


def _concerned(answers: Sequence[Answer], request: Any) -> list[Answer]:
    values = request if isinstance(request, dict) else {}
    return [answer for answer in answers if answer.only is None or answer.only(values)]


def older_error(error: ApiError, request: Any, answers: Sequence[Answer]) -> ApiError:
    """Returns the error of the older version."""
    for answer in answers:
        if answer.failure is not None:
            error = answer.failure(error, request) or error
    return error


def older_response(response: Response, request: Any, answers: Sequence[Answer]) -> Response:
    """Returns the response with the body of the older version."""
    body = response.body
    if response.headers.get("Content-Type") == EVENT_STREAM:
        shapers = [*_shapers(request, answers)]
        if shapers:
            response.body = _older_stream(body, shapers)
    elif isinstance(body, bytes) and response.status < 300:
        if any(answer.empty for answer in answers):
            return Response(b"", response.status)
        older = _older_body(body, request, answers)
        if older is not body:
            response.replace_body(older)
    return response


def _shapers(request: Any, answers: Sequence[Answer]) -> Iterator[ToEvents]:
    """Yields functions from an event to the events of the older version."""
    if any(answer.failure is not None for answer in answers):
        yield partial(_failed, answers, request)
    for answer in answers:
        if answer.edit is not None:
            yield partial(_edited, answer.edit)
        if answer.events is not None:
            yield answer.events(request)


class OlderStream(StreamingBody):
    """A stream whose events are turned into those of an older version."""

    def __init__(self, stream: StreamingBody, shapers: Sequence[ToEvents]) -> None:
        super().__init__()
        self._stream = stream
        self._shapers = shapers

    @property
    def is_cut_off(self) -> bool:
        """True if a fault has ended the stream early."""
        return self._stream.is_cut_off

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            older = older_events(piece, self._shapers)
            self.bytes_sent += len(older)
            yield older

    def close(self) -> None:
        """Closes the stream."""
        self._stream.close()
        self.gone = self._stream.gone


def older_events(data: bytes, shapers: Sequence[ToEvents]) -> bytes:
    """Returns whole events in the form of the older version; others than JSON objects unchanged."""
    reader = EventReader()
    older: list[bytes] = []
    for event in reader.feed(data):
        try:
            value = decode_json(event.data)
        except msgspec.DecodeError:
            value = None
        if not isinstance(value, dict):
            older.append(event.raw)
            continue
        parsed: list[Event] = [(event.type.decode(), value)]
        for shaper in shapers:
            parsed = [result for each in parsed for result in shaper(each)]
        older += [_written(*each) for each in parsed]
    older.append(reader.remainder)
    return b"".join(older)


def _written(name: str, data: JsonObject) -> bytes:
    line = b"event: %b\n" % name.encode() if name else b""
    return line + event_of(Raw(encode(data)))


def _older_stream(
    body: bytes | Iterable[bytes], shapers: Sequence[ToEvents]
) -> bytes | Iterable[bytes]:
    if isinstance(body, StreamingBody):
        return OlderStream(body, shapers)
    if isinstance(body, bytes):
        return older_events(body, shapers)
    return [older_events(piece, shapers) for piece in body]


def _older_body(body: bytes, request: Any, answers: Sequence[Answer]) -> bytes:
    if all(answer.edit is None and answer.whole is None for answer in answers):
        return body
    try:
        value = decode_json(body)
    except msgspec.DecodeError:
        return body
    for answer in answers:
        if answer.edit is not None:
            answer.edit(value)
        if answer.whole is not None:
            value = answer.whole(value, request) or value
    return encode(value)


def _failed(answers: Sequence[Answer], request: Any, event: Event) -> Iterator[Event]:
    """Yields the event, or an error of the older version in the place of an error."""
    name, data = event
    fields = data.get("error")
    if isinstance(fields, dict) and isinstance(fields.get("code"), int):
        error = ApiError(
            fields["code"], str(fields["type"]), str(fields["message"]), fields.get("param")
        )
        data = decode_json(older_error(error, request, answers).body())
    yield name, data


def _edited(edit: Callable[[Any], None], event: Event) -> Iterator[Event]:
    edit(event[1])
    yield event


def _request_of(context: RequestContext) -> Any:
    """Returns the decoded body of a request; an empty object for one that is not JSON."""
    try:
        return decode_json(context.body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
