"""Decodes a body to a request struct, or raises vLLM's error for the body.

Fast path: one strict msgspec decode, the request's rules, and conversions by functions. A rejected
body is decoded again with lax conversion (`app.core.protocol.convert`), which reports errors in
vLLM's order: not JSON; the request's rules, on raw values; the schema. A body is decoded in one go:
`app.core.server.http.context` limits its values.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from types import FunctionType
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields as fields_of

from app.core.base.clock.pause import paced, pause_if_possible
from app.core.protocol.coercion import (
    MAX_PROBLEMS,
    ConversionError,
    JsonObject,
    LaxFields,
    Path,
    format_param,
)
from app.core.protocol.convert import convert
from app.core.protocol.rules import check_unicode
from app.core.server.http.errors import ApiError, invalid_field, invalid_fields, malformed
from app.core.server.http.response import JSON
from config.json_text import MAX_INTEGER_DIGITS, has_long_integer

_decoder = cache(msgspec.json.Decoder)
LARGE_BODY_BYTES = 1 << 17
"""Size of a body above which other requests may run before the body's rules are checked."""
PROBLEMS = {
    "bool_parsing": "Input should be a valid boolean, unable to interpret input",
    "bool_type": "Input should be a valid boolean",
    "dict_type": "Input should be a valid dictionary",
    "extra_forbidden": "Extra inputs are not permitted",
    "float_parsing": "Input should be a valid number, unable to parse string as a number",
    "float_type": "Input should be a valid number",
    "int_from_float": "Input should be a valid integer, got a number with a fractional part",
    "int_parsing": "Input should be a valid integer, unable to parse string as an integer",
    "int_type": "Input should be a valid integer",
    "list_type": "Input should be a valid list",
    "missing": "Field required",
    "model_attributes_type": (
        "Input should be a valid dictionary or object to extract fields from"
    ),
    "string_type": "Input should be a valid string",
}
"""Pydantic's messages for kinds of errors."""
WHOLE_MESSAGES = frozenset(
    (
        *("string_too_long", "string_too_short", "too_long", "too_short"),
        *("union_tag_invalid", "union_tag_not_found"),
    )
)
"""Kinds of errors whose `expected` is the message."""

T = TypeVar("T", bound="Request")
S = TypeVar("S", bound=Struct)


class Request(Struct, kw_only=True):
    """A request body.

    The first invalid field in declaration order is reported; vLLM may name a different one.

    `lax_fields` maps field names to inputs of the lax conversion that the annotation cannot
    express: a wider annotation, or a function, which converts strictly decoded values, too.
    `rule_defaults` maps missing fields to the values that rules see instead of None.
    """

    lax_fields: ClassVar[LaxFields] = {}
    rule_defaults: ClassVar[JsonObject] = {}
    nested_parameters: ClassVar[str | None] = None
    """Name of a struct among the fields whose fields depend on the version, too."""

    @classmethod
    def error_path(cls, values: JsonObject, path: Path) -> Path:
        """Returns the path that vLLM reports for a conversion error at `path` of the body."""
        return path

    def check_rules(self: "Request | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema, to fields of any type.

        Raises:
            ApiError: A rule is broken.
        """

    def check_converted(self) -> None:
        """Applies vLLM's rules that come after the schema.

        Raises:
            ApiError: A rule is broken.
        """

    def check_decoded(self) -> None:
        """Applies all rules and conversions to strictly decoded fields.

        Raises:
            ApiError, ConversionError: The body is invalid, and the lax conversion reports why.
        """
        self.check_rules()
        for name, converter in self.lax_fields.items():
            if isinstance(converter, FunctionType):
                setattr(self, name, converter(getattr(self, name)))
        self.check_converted()


class RawRequest:
    """Parsed JSON with a request's attributes, as raw values.

    A missing field has its value of `rule_defaults`, or None.
    """

    def __init__(self, values: Mapping[str, object], rule_defaults: Mapping[str, object]) -> None:
        self._values = values
        self._rule_defaults = rule_defaults

    def __getattr__(self, name: str) -> Any:
        values = self._values
        if name in values:
            return values[name]
        return self._rule_defaults.get(name)


class UnparsableBodyError(ApiError):
    """Error 400 of vLLM's server for a body that is not Unicode or nests too deeply."""

    def __init__(self) -> None:
        super().__init__(400, "Bad Request", "There was an error parsing the body")

    def body(self) -> bytes:
        """Returns the body that FastAPI sends for an error that it raises itself."""
        return msgspec.json.encode({"detail": self.message})


def decode(
    body: bytes,
    content_type: str | None,
    *kinds: type[T],
    ignored_fields: Collection[str] = (),
    nullable_fields: Collection[str] = (),
) -> T:
    """Returns the request in `body` as the first of `kinds` that fits; accepts unknown fields.

    The `ignored_fields` have their defaults in the result, whatever the body has.
    A null in one of the `nullable_fields` stands for the default.

    Raises:
        ApiError: Status 400 for an invalid body: the error of the last kind.
    """
    if content_type != JSON:
        check_content_type(content_type)
    for kind in kinds if len(kinds) == 1 else paced(kinds):
        try:
            request: T = _decoder(kind).decode(body)
            if len(body) > LARGE_BODY_BYTES:
                pause_if_possible()
            if ignored_fields:
                _reset(request, ignored_fields)
            request.check_decoded()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConversionError, ApiError):
            continue
        if len(body) > MAX_INTEGER_DIGITS and has_long_integer(body):
            _parse_json(body)
        return request
    values = _parse_json(body) if body else None
    if values is None:
        raise invalid_field("missing", "body", PROBLEMS["missing"])
    if not isinstance(values, dict):
        raise invalid_field(
            "model_attributes_type", "body", PROBLEMS["model_attributes_type"], values
        )
    for kind in kinds:
        _drop(values.get(kind.nested_parameters or ""), ignored_fields)
    _drop(values, ignored_fields, nullable_fields)
    return _convert_first(values, kinds, body)


def _drop(values: object, names: Collection[str], nullable_names: Collection[str] = ()) -> None:
    """Removes fields of raw JSON, in place: those of `names`, and nulls of `nullable_names`."""
    if isinstance(values, dict):
        for name in names:
            values.pop(name, None)
        for name in nullable_names:
            if name in values and values[name] is None:
                del values[name]


def _reset(request: Request, names: Collection[str]) -> None:
    """Sets the fields of these names to their defaults."""
    structs: list[Struct] = [request]
    if request.nested_parameters is not None:
        structs.append(getattr(request, request.nested_parameters))
    for struct in structs:
        for name in names:
            if name in struct.__struct_fields__:
                value, make = _default_of(type(struct), name)
                setattr(struct, name, value if make is None else make())


@cache
def _default_of(kind: type[Struct], name: str) -> tuple[object, Callable[[], object] | None]:
    """Returns the default of a field that a version adds, or what makes the default."""
    [field] = [field for field in fields_of(kind) if field.name == name]
    if field.default_factory is NODEFAULT:
        return field.default, None
    return None, field.default_factory


def conversion_failure(
    error: ConversionError, values: object, format_path: Callable[[Path], str]
) -> ApiError:
    """Returns vLLM's error for fields of `values` that do not fit their types."""
    problems = []
    for failure in (error, *error.further):
        message = PROBLEMS.get(failure.kind)
        if message is None:
            is_whole = failure.kind in WHOLE_MESSAGES
            message = failure.expected if is_whole else f"Input should be {failure.expected}"
        # An absent field has the object without it as its value.
        path = failure.path[:-1] if failure.kind == "missing" else failure.path
        value = _value_at(values, path)
        location = format_path(failure.path)
        problems.append((failure.kind, location, message, value, failure.context))
    del problems[MAX_PROBLEMS:]
    return invalid_fields(problems, error.count)


def _value_at(value: Any, path: Path) -> object:
    """Returns the value that a path leads to; steps that name a type lead nowhere."""
    for step in path:
        is_index = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_index or isinstance(value, Mapping) and step in value:
            value = value[step]
    return value


def decode_query(query: Mapping[str, str], kind: type[S]) -> S:
    """Returns the parameters of a URL's query as a struct.

    Raises:
        ApiError: Status 400 for an invalid parameter.
    """
    try:
        return convert(kind, query)
    except ConversionError as error:
        raise conversion_failure(error, query, lambda path: f"query.{path[0]}") from None


def decode_embedded(body: bytes, content_type: str | None, kind: type[T]) -> T:
    """Decodes the body of a route that vLLM declares field by field.

    A missing body and fields of null have the defaults.

    Raises:
        ApiError: Status 400 for an invalid body.
    """
    values = _parse_json(body) if body and is_json(content_type) else None
    if values is not None and not isinstance(values, dict):
        param = f"body.{kind.__struct_fields__[0]}"
        raise invalid_field("missing", param, PROBLEMS["missing"], values)
    fields = {name: value for name, value in (values or {}).items() if value is not None}
    return _convert_first(fields, (kind,), body)


def read_json(body: bytes) -> object:
    """Parses the JSON of a route without a schema.

    Raises:
        ApiError: Status 400, without a `param`.
    """
    try:
        return _parse_json(body)
    except ApiError as error:
        raise malformed(error.message) from None


def check_content_type(content_type: str | None) -> None:
    """Raises `ApiError` 400 unless the type is ``application/json``."""
    if not is_json(content_type):
        raise malformed(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        )


def is_json(content_type: str | None) -> bool:
    """Returns true for ``application/json``, with any parameters."""
    return content_type is not None and content_type.lower().partition(";")[0] == JSON


def _parse_json(body: bytes) -> object:
    if len(body) > LARGE_BODY_BYTES:
        pause_if_possible()
        # Twice as fast as `json`, which also reads NaN and Infinity, and words vLLM's errors.
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(body)
        pause_if_possible()
    try:
        parsed: object = json.loads(body)
        return parsed
    except json.JSONDecodeError as error:
        position = error.pos
        if error.msg.startswith("Illegal trailing comma"):
            # Python 3.13 and later point at the comma; vLLM's Python points at the text after it.
            position = len(error.doc) - len(error.doc[position + 1 :].lstrip(" \t\n\r"))
        raise invalid_field(
            "json_invalid",
            f"body.{position}",
            "JSON decode error",
            value={},
            context={"error": _python_311_words(error.msg)},
        ) from None
    except (ValueError, RecursionError):
        raise UnparsableBodyError from None


def _body_path(kind: type[Request], values: JsonObject, path: Path) -> str:
    return format_param(kind.error_path(values, path))


def _python_311_words(message: str) -> str:
    """Returns the message of vLLM's Python for an error of JSON; later ones have more messages."""
    if message == "Illegal trailing comma before end of object":
        return "Expecting property name enclosed in double quotes"
    if message == "Illegal trailing comma before end of array":
        return "Expecting value"
    return message


def _convert_first(values: JsonObject, kinds: Sequence[type[T]], body: bytes) -> T:
    for kind in kinds:
        kind.check_rules(RawRequest(values, kind.rule_defaults))
    for kind in kinds:
        if len(body) > LARGE_BODY_BYTES:
            pause_if_possible()
        try:
            request = convert(kind, values)
        except ConversionError as error:
            failure = conversion_failure(error, values, partial(_body_path, kind, values))
        else:
            check_unicode(values)
            request.check_converted()
            return request
    raise failure
