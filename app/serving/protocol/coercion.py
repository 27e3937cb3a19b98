"""Lax conversion of parsed JSON to request structs, with the rules of a pydantic server.

The slow path of decoding, only for bodies that the strict msgspec decoder refuses. Lax: ``"5"``,
``5.0`` and ``true`` are integers, ``"yes"`` is a boolean, integers are floats. The first misfit in
declaration order decides the error; its path becomes the client's ``param``.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache, partial
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct, UnsetType

T = TypeVar("T", bound=Struct)
K = TypeVar("K", str, int)
Convert = Callable[[object], object]

JsonObject = dict[str, object]
"""A JSON object of a client, with unchecked contents."""

_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
_MAX_DIGITS = 4300
_BOOLEANS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


class Misfit(Exception):
    """A value that does not fit its type; `path` leads to the value from the converted root."""

    def __init__(self, expected: str, *path: str | int) -> None:
        super().__init__(expected)
        self.expected = expected
        self.path = path

    def under(self, step: str | int) -> "Misfit":
        return Misfit(self.expected, step, *self.path)


def param_of(path: tuple[str | int, ...]) -> str:
    """Formats a path as ``param`` (vllm-api.md section 4):

    ``("stop", 0)`` becomes ``body.stop.0``.
    """
    return ".".join(["body", *map(str, path)])


def convert(kind: type[T], value: object) -> T:
    """Builds `kind` from parsed JSON; unknown keys are dropped.

    A struct's class attribute ``lax`` maps field names to a wider annotation or a function, for
    inputs that msgspec's types cannot express. Raises `Misfit`, and errors of a ``__post_init__``.
    """
    built = _converter(kind)(value)
    assert isinstance(built, kind)
    return built


def convert_value(annotation: Hashable, value: object) -> Any:
    return _converter(annotation)(value)


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise Misfit("a string")


def _integer(value: object) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if (
        isinstance(value, str)
        and len(value) <= _MAX_DIGITS
        and _INTEGER.fullmatch(text := value.strip())
    ):
        return int(text.partition(".")[0])
    raise Misfit("an integer")


def _number(value: object) -> float:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except OverflowError:
            return math.inf if isinstance(value, int) and value > 0 else -math.inf
        except ValueError:
            pass
    raise Misfit("a number")


def _boolean(value: object) -> bool:
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and (known := _BOOLEANS.get(value.lower())) is not None:
        return known
    raise Misfit("a boolean")


def non_negative(value: object) -> object:
    """Converts token ids; the path of a negative one is the whole list."""
    ids = convert_value(list[int] | None, value)
    if isinstance(ids, list) and ids and min(ids) < 0:
        raise Misfit("no negative numbers")
    return ids


def as_it_is(value: object) -> object:
    return value


_SCALARS: Mapping[object, Convert] = {
    str: _string,
    int: _integer,
    float: _number,
    bool: _boolean,
    object: as_it_is,
}


@cache
def _converter(annotation: object) -> Convert:
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin is Annotated:
        inner = _converter(args[0])
        return lambda value: _strictly(annotation, inner(value))
    if origin is Literal:
        return partial(_strictly, annotation)
    if origin is list:
        is_scalar = args[0] in _SCALARS or get_origin(args[0]) is Annotated
        return partial(_list, annotation if is_scalar else None, _converter(args[0]))
    if origin is dict:
        return partial(_mapping, _converter(args[1]))
    if origin in (Union, UnionType):
        return _union_of(args)
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _struct_of(annotation)
    raise TypeError(f"no lax conversion for {annotation!r}")


def _strictly(annotation: object, value: object) -> object:
    try:
        return msgspec.convert(value, annotation)
    except (
        msgspec.ValidationError,
        UnicodeEncodeError,
    ) as error:  # a lone surrogate is no enum value
        expected = str(error).removeprefix("Expected ")
        raise Misfit(expected.replace("Invalid enum value", "another value than")) from None


def _list(scalars: object, item: Convert, value: object) -> object:
    """`scalars` is the annotation of a list of scalars, which is mostly right in one go."""
    if not isinstance(value, list):
        raise Misfit("a list")
    if scalars is not None:
        try:
            return msgspec.convert(value, scalars)
        except (msgspec.ValidationError, UnicodeEncodeError):
            pass
    return [element for _, element in _items(item, enumerate(value))]


def _mapping(item: Convert, value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise Misfit("an object")
    return dict(_items(item, value.items()))


def _items(item: Convert, pairs: Iterable[tuple[K, object]]) -> Iterator[tuple[K, object]]:
    for step, element in pairs:
        try:
            yield step, item(element)
        except Misfit as misfit:
            raise misfit.under(step) from None


def _union_of(members: tuple[object, ...]) -> Convert:
    nullable = NoneType in members
    branches = [member for member in members if member not in (NoneType, UnsetType)]
    structs = [each for each in branches if isinstance(each, type) and issubclass(each, Struct)]
    if len(structs) == len(branches) and all(kind.__struct_config__.tag for kind in structs):
        by_tag: dict[object, Convert] = {
            kind.__struct_config__.tag: _converter(kind) for kind in structs
        }
        return partial(_tagged, nullable, structs[0].__struct_config__.tag_field or "type", by_tag)
    exact: dict[object, Convert] = {
        branch: _converter(branch) for branch in branches if branch in (str, int, float)
    }
    return partial(_union, nullable, exact, [_converter(branch) for branch in branches])


def _union(
    nullable: bool, exact: Mapping[object, Convert], converters: Iterable[Convert], value: object
) -> object:
    """Converts to a member of the value's own type, else the first that fits; else the first one's
    misfit.
    """
    if value is None and nullable:
        return None
    if (same := exact.get(type(value))) is not None:
        return same(value)
    misfits: list[
        tuple[str, tuple[str | int, ...]]
    ] = []  # no errors, which would refer to this frame
    for converter in converters:
        try:
            return converter(value)
        except Misfit as misfit:
            misfits.append((misfit.expected, misfit.path))
    path = misfits[0][1]
    raise Misfit(", or ".join([expected for expected, where in misfits if where == path]), *path)


def _tagged(nullable: bool, field: str, by_tag: Mapping[object, Convert], value: object) -> object:
    """Converts to the struct with the value's tag; the path of a misfit includes the tag."""
    if value is None and nullable:
        return None
    tag = value.get(field) if isinstance(value, dict) else None
    if not isinstance(tag, str) or tag not in by_tag:
        raise Misfit(f"{field} to be one of {', '.join(map(str, by_tag))}")
    try:
        return by_tag[tag](value)
    except Misfit as misfit:
        raise misfit.under(tag) from None


Field = tuple[str, str, bool, Convert]


def _struct_of(kind: type[Struct]) -> Convert:
    wider: dict[str, Hashable] = getattr(kind, "lax", {})
    fields: list[Field] = []
    for field in msgspec.structs.fields(kind):
        required = field.default is NODEFAULT and field.default_factory is NODEFAULT
        annotation = wider.get(field.name, field.type)
        converter = annotation if isinstance(annotation, FunctionType) else _converter(annotation)
        fields.append((field.name, field.encode_name, required, converter))
    return partial(_struct, kind, fields)


def _struct(kind: type[Struct], fields: Iterable[Field], value: object) -> Struct:
    """Converts all fields, for a struct's own errors come before a misfit; the first misfit is
    raised.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, dict):
        raise Misfit("an object")
    arguments: JsonObject = {}
    misfits: list[tuple[str, tuple[str | int, ...]]] = []
    for name, key, required, converter in fields:
        try:
            if key in value:
                arguments[name] = converter(value[key])
            elif required:
                raise Misfit("a value, it is missing")
        except Misfit as misfit:
            misfits.append((misfit.expected, (key, *misfit.path)))
    if kind.__struct_config__.forbid_unknown_fields:
        unknown = value.keys() - {key for _, key, *_ in fields}
        misfits += [("no such field", (key,)) for key in sorted(unknown)]
    for expected, path in misfits:
        raise Misfit(expected, *path)
    return kind(**arguments)
