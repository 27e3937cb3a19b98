"""Decodes a body to a request struct, or raises vLLM's error for the body.

Fast path: one strict msgspec decode, the request's rules, and conversions by functions. A refused
body is decoded again with lax conversion (`app.serving.protocol.coercion`), which reports errors in
vLLM's order: not JSON; the request's rules, on raw values; the schema. A body is decoded in one go:
`app.serving.http.context` limits its values.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from types import FunctionType
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Struct

from app.base.clock.pause import pause_if_possible
from app.serving.http.errors import ApiError, malformed
from app.serving.protocol.coercion import JsonObject, Misfit, convert, param_of
from app.serving.protocol.rules import check_unicode

_decoder = cache(msgspec.json.Decoder)
LONG = 1 << 17
"""Size of a body, in bytes, above which other requests get a turn before its rules are checked."""

T = TypeVar("T", bound="Request")
U = TypeVar("U", bound="Request")
S = TypeVar("S", bound=Struct)


class Request(Struct, kw_only=True):
    """A request body. The first misfit in the order of declaration is reported; vLLM may name
    another.

    `lax` maps field names to inputs of the lax conversion that the annotation cannot express: a
    wider annotation, or a function, which converts strictly decoded values, too. `absent` maps
    missing fields to the values that rules see, if not None.
    """

    lax: ClassVar[Mapping[str, Hashable]] = {}
    absent: ClassVar[Mapping[str, object]] = {}

    @classmethod
    def place(cls, values: JsonObject, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
        return path

    def check_rules(self: "Request | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema, to fields of any type.

        Raises `ApiError`.
        """

    def check_converted(self) -> None:
        """Applies vLLM's rules that come after the schema. Raises `ApiError`."""


class RawRequest:
    """Parsed JSON with a request's attributes:

    raw values; missing ones are from `absent`, else None.
    """

    def __init__(self, values: Mapping[str, object], absent: Mapping[str, object]) -> None:
        self._values = values
        self._absent = absent

    def __getattr__(self, name: str) -> Any:
        values = self._values
        return values[name] if name in values else self._absent.get(name)


class UnparsableBody(ApiError):
    """Error 400 for a body that is not Unicode or nests too deeply, in the words of vLLM's server."""

    def __init__(self) -> None:
        super().__init__(400, "Bad Request", "There was an error parsing the body")

    def body(self) -> bytes:
        return msgspec.json.encode({"detail": self.message})


def decode(body: bytes, content_type: str | None, kind: type[T]) -> T:
    """Returns the request in `body`; unknown fields are accepted. Raises `ApiError` 400."""
    return decode_first(body, content_type, (kind,))


def decode_first(
    body: bytes, content_type: str | None, kinds: tuple[type[T]] | tuple[type[T], type[U]]
) -> T | U:
    """Returns the request in `body` as the first of `kinds` that fits; an error is the last kind's."""
    check_content_type(content_type)
    for kind in kinds:
        if (request := _strictly(body, kind)) is not None:
            return request
    values = _parse_json(body) if body else None
    if not isinstance(values, dict):
        raise malformed("body: a JSON object is needed", "body")
    converted = _convert_first(values, kinds, body)
    assert isinstance(converted, kinds)
    return converted


def decode_query(query: Mapping[str, str], kind: type[S]) -> S:
    try:
        return convert(kind, query)
    except Misfit as misfit:
        where = f"query.{misfit.path[0]}"
        raise malformed(f"{where}: expected {misfit.expected}", where) from None


def decode_embedded(body: bytes, content_type: str | None, kind: type[T]) -> T:
    """Decodes for a route that vLLM declares field by field:

    without a body, or null, a field is dropped.
    """
    values = _parse_json(body) if body and is_json(content_type) else None
    if values is not None and not isinstance(values, dict):
        first = kind.__struct_fields__[0]
        raise malformed(f"body.{first}: expected an object around it", f"body.{first}")
    given = {name: value for name, value in (values or {}).items() if value is not None}
    request = _convert_first(given, (kind,), body)
    assert isinstance(request, kind)
    return request


def read_json(body: bytes) -> object:
    """Parses the JSON of a route without a schema. ApiError 400, without a `param`."""
    try:
        return _parse_json(body)
    except ApiError as error:
        raise malformed(error.message) from None


def first_fit(values: JsonObject, kinds: Sequence[type[Request]]) -> type[Request] | None:
    """Returns the first of `kinds` that fits `values`; else None.

    ApiError from a rule of a tried kind.
    """
    for kind in kinds:
        kind.check_rules(RawRequest(values, kind.absent))
        try:
            convert(kind, values)
        except Misfit:
            continue
        return kind
    return None


def check_content_type(content_type: str | None) -> None:
    if not is_json(content_type):
        raise malformed("the content type must be application/json")


def is_json(content_type: str | None) -> bool:
    if content_type == "application/json":
        return True
    return content_type is not None and content_type.lower().partition(";")[0] == "application/json"


def _strictly(body: bytes, kind: type[T]) -> T | None:
    try:
        request: T = _decoder(kind).decode(body)
        if len(body) > LONG:
            pause_if_possible()
        request.check_rules()
        for name, converter in kind.lax.items():
            if isinstance(converter, FunctionType):
                setattr(request, name, converter(getattr(request, name)))
        request.check_converted()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Misfit, ApiError):
        return None
    return request


def _parse_json(body: bytes) -> object:
    try:
        parsed: object = json.loads(body)
        return parsed
    except json.JSONDecodeError as error:
        at = error.pos
        if error.msg.startswith(
            "Illegal trailing comma"
        ):  # from Python 3.13 on; vLLM's names the next place
            at = len(error.doc) - len(error.doc[at + 1 :].lstrip(" \t\n\r"))
        raise malformed(f"body: not JSON at character {at}: {error.msg}", f"body.{at}") from None
    except (ValueError, RecursionError):
        raise UnparsableBody from None


def _convert_first(values: JsonObject, kinds: Sequence[type[Request]], body: bytes) -> Request:
    for kind in kinds:
        kind.check_rules(RawRequest(values, kind.absent))
    for kind in kinds:
        if len(body) > LONG:
            pause_if_possible()
        try:
            request = convert(kind, values)
        except Misfit as misfit:
            path, expected = kind.place(values, misfit.path), misfit.expected
        else:
            check_unicode(values)
            request.check_converted()
            return request
    where = param_of(path)
    raise malformed(f"{where}: expected {expected}", where)
