"""Lax conversion of parsed JSON to request structs, with the rules of a pydantic server.

The slow path of decoding, only for bodies that the strict msgspec decoder refuses. Lax: ``"5"``, ``5.0`` and
``true`` are integers, ``"yes"`` is a boolean, integers are floats. The first misfit in declaration order
decides the error; its path becomes the client's ``param``.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct, UnsetType

T = TypeVar("T", bound=Struct)
Convert = Callable[[object], object]

JsonObject = dict[str, object]
"""A JSON object of a client, with unchecked contents."""

_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
_MAX_DIGITS = 4300
_BOOLEANS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}
_BRACKETS = frozenset("[]{}()")
# vLLM drops path steps that look like internals of the schema library, even when they are the client's keys:
# `{"logit_bias": {"int": "x"}}` is wrong at `body.logit_bias`.
_INTERNAL = frozenset(
    (
        *("function-wrap", "function-after", "function-before", "function-plain", "json-or-python"),
        *("lax-or-strict", "chain", "default", "nullable", "tagged-union", "union", "call", "arguments"),
        *("is-instance", "is-subclass", "callable", "str", "int", "float", "bool", "bytes", "bytearray"),
        *("list", "tuple", "dict", "set", "frozenset", "complex", "none", "nonetype"),
    )
)


class Misfit(Exception):
    """A value that does not fit its type; `path` leads to the value from the converted root."""

    def __init__(self, expected: str, *path: str | int) -> None:
        super().__init__(expected)
        self.expected = expected
        self.path = path

    def after(self, other: Misfit | None) -> Misfit:
        """Merges this misfit into an earlier one: at the same path, both expected types are named."""
        if other is None or self.path != other.path:
            return other or self
        return Misfit(f"{other.expected}, or {self.expected}", *other.path)

    def under(self, step: str | int) -> Misfit:
        """Returns the misfit with `step` before its path."""
        return Misfit(self.expected, step, *self.path)


def param_of(path: tuple[str | int, ...]) -> str:
    """Formats a path as ``param`` (vllm-api.md section 4): ``("stop", 0)`` becomes ``body.stop.0``."""
    shown = (step for step in map(str, path) if step.lower() not in _INTERNAL and _BRACKETS.isdisjoint(step))
    return ".".join(["body", *shown])


def convert(kind: type[T], value: object) -> T:
    """Builds `kind` from parsed JSON; unknown keys are dropped.

    A struct's class attribute ``lax`` maps field names to a wider annotation or a function, for inputs that
    msgspec's types cannot express. Raises `Misfit`, and errors of a ``__post_init__``.
    """
    built = _converter(kind)(value)
    assert isinstance(built, kind)
    return built


def convert_value(annotation: Hashable, value: object) -> Any:
    """Converts as `convert` does, for any annotation of a struct's field."""
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
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and _INTEGER.fullmatch(text := value.strip()):
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
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and (known := _BOOLEANS.get(value.lower())) is not None:
        return known
    raise Misfit("a boolean")


def non_negative(value: object) -> object:
    """Converts token ids; the path of a negative one is the whole list."""
    ids = _converter(list[int] | None)(value)
    if isinstance(ids, list) and ids and min(ids) < 0:
        raise Misfit("no negative numbers")
    return ids


def as_it_is(value: object) -> object:
    """Returns `value` unchanged: for fields of any type, or checked together with other fields."""
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
    origin = get_origin(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin is Annotated:
        return _bounded(*get_args(annotation))
    if origin is Literal:
        return _literal(get_args(annotation))
    if origin is list:
        return _list(get_args(annotation)[0])
    if origin is dict:
        return _mapping(_converter(get_args(annotation)[1]))
    if origin in (Union, types.UnionType):
        return _union(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _struct(annotation)
    raise TypeError(f"no lax conversion for {annotation!r}")


def _bounded(inner: object, *constraints: object) -> Convert:
    convert_inner = _converter(inner)
    metas = [constraint for constraint in constraints if isinstance(constraint, Meta)]

    def bounded(value: object) -> object:
        result = convert_inner(value)
        for meta in metas:
            _check_bounds(result, meta)
        return result

    return bounded


def _check_bounds(value: object, meta: Meta) -> None:
    if isinstance(value, int | float):
        if meta.ge is not None and value < meta.ge:
            raise Misfit(f"at least {meta.ge}")
        if meta.le is not None and value > meta.le:
            raise Misfit(f"at most {meta.le}")
    elif isinstance(value, str | list):
        if meta.min_length is not None and len(value) < meta.min_length:
            raise Misfit(f"a length of at least {meta.min_length}")
        if meta.max_length is not None and len(value) > meta.max_length:
            raise Misfit(f"a length of at most {meta.max_length}")


def _literal(words: tuple[object, ...]) -> Convert:
    def literal(value: object) -> object:
        if isinstance(value, str) and value in words:
            return value
        raise Misfit("one of " + ", ".join(repr(word) for word in words))

    return literal


def _list(annotation: object) -> Convert:
    item = _converter(annotation)
    scalar, *metas = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)

    def fits(value: list[object]) -> bool:
        """True if no element needs conversion; much faster than converting one by one."""
        if set(map(type, value)) != {scalar} or metas and scalar is not int:
            return False
        try:
            for extreme in (min(cast(list[int], value)), max(cast(list[int], value))) if metas else ():
                for meta in metas:
                    _check_bounds(extreme, meta)
        except Misfit:
            return False
        return True

    def convert_list(value: object) -> list[object]:
        if not isinstance(value, list):
            raise Misfit("a list")
        if fits(value):
            return value
        result: list[object] = []
        try:
            for element in value:
                result.append(item(element))
        except Misfit as misfit:
            raise misfit.under(len(result)) from None
        return result

    return convert_list


def _mapping(item: Convert) -> Convert:
    def convert_mapping(value: object) -> JsonObject:
        if not isinstance(value, dict):
            raise Misfit("an object")
        result: JsonObject = {}
        for key, element in value.items():
            try:
                result[key] = item(element)
            except Misfit as misfit:
                raise misfit.under(key) from None
        return result

    return convert_mapping


def _union(members: tuple[object, ...]) -> Convert:
    """Converts to the value's own type if a member, else to the first member that fits.

    Without a fit, the first member's misfit is raised, merged with others at the same path.
    """
    nullable = NoneType in members
    branches = [member for member in members if member not in (NoneType, UnsetType)]
    structs = [each for each in branches if isinstance(each, type) and issubclass(each, Struct)]
    if len(structs) == len(branches) and all(kind.__struct_config__.tag for kind in structs):
        return _tagged(structs, nullable)
    exact: Mapping[object, Convert] = {
        branch: _converter(branch) for branch in branches if branch in (str, int, float)
    }
    converters = [_converter(branch) for branch in branches]

    def union(value: object) -> object:
        if value is None and nullable:
            return None
        if (same := exact.get(type(value))) is not None:
            return same(value)
        first: Misfit | None = None
        for converter in converters:
            try:
                return converter(value)
            except Misfit as misfit:
                first = misfit.after(first)
        assert first is not None
        try:
            raise first
        finally:
            del first  # avoids a reference cycle of frame and error

    return union


def _tagged(kinds: Sequence[type[Struct]], nullable: bool) -> Convert:
    """Converts to the struct with the value's tag; the path of a misfit includes the tag."""
    field = kinds[0].__struct_config__.tag_field
    by_tag = {kind.__struct_config__.tag: _struct(kind) for kind in kinds}

    def tagged(value: object) -> object:
        if value is None and nullable:
            return None
        tag = value.get(field) if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in by_tag:
            raise Misfit(f"{field} to be one of {', '.join(map(str, by_tag))}")
        try:
            return by_tag[tag](value)
        except Misfit as misfit:
            raise misfit.under(tag) from None

    return tagged


def _struct(kind: type[Struct]) -> Convert:
    wider: dict[str, Hashable] = getattr(kind, "lax", {})
    fields: list[tuple[str, str, bool, Convert]] = []
    places = {name: place for place, name in enumerate(getattr(kind, "order", "").split())}
    for field in sorted(msgspec.structs.fields(kind), key=lambda field: places.get(field.name, -1)):
        required = field.default is NODEFAULT and field.default_factory is NODEFAULT
        annotation = wider.get(field.name, field.type)
        converter = annotation if isinstance(annotation, types.FunctionType) else _converter(annotation)
        fields.append((field.name, field.encode_name, required, converter))

    forbids, known = kind.__struct_config__.forbid_unknown_fields, {key for _, key, *_ in fields}

    def convert_struct(value: object) -> Struct:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise Misfit("an object")
        arguments: JsonObject = {}
        first: Misfit | None = None
        for name, key, required, converter in fields:
            if key not in value:
                if required:
                    first = first or Misfit("a value, it is missing", key)
                continue
            try:
                arguments[name] = converter(value[key])
            except Misfit as misfit:
                first = first or misfit.under(key)
        if forbids and (unknown := value.keys() - known):
            first = first or Misfit("no such field", min(unknown))
        try:
            if first is not None:
                raise first
        finally:
            del first  # avoids a reference cycle, as above
        return kind(**arguments)

    return convert_struct
