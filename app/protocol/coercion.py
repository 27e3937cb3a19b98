"""Lax conversion of parsed JSON into request structs, as a pydantic server does it.

The slow path of decoding: it runs only for bodies that the strict msgspec decoder refused. Lax means that
``"5"``, ``5.0`` and ``true`` are integers, ``"yes"`` is a boolean, integers are floats. The first misfit in
declaration order decides the error, and its path is what clients see as ``param``.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct, UnsetType

T = TypeVar("T", bound=Struct)
Convert = Callable[[Any], Any]

_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
_MAX_DIGITS = 4300
_BOOLEANS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


class Misfit(Exception):
    """A value that does not fit its type; `path` leads to it from where the conversion began."""

    def __init__(self, expected: str, *path: str | int) -> None:
        super().__init__(expected)
        self.expected = expected
        self.path = path

    def under(self, step: str | int) -> Misfit:
        """The same misfit, seen from one step further out."""
        return Misfit(self.expected, step, *self.path)


def convert(kind: type[T], value: Any) -> T:
    """Build `kind` from parsed JSON; unknown keys are dropped.

    A class attribute ``lax`` of a struct maps field names to a wider annotation, or to a function, where
    msgspec's types cannot say what is accepted. Raises `Misfit`, and what a ``__post_init__`` raises.
    """
    built = _converter(kind)(value)
    assert isinstance(built, kind)
    return built


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Misfit("a string")


def _integer(value: Any) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and _INTEGER.fullmatch(text := value.strip()):
        return int(text.partition(".")[0])
    raise Misfit("an integer")


def _number(value: Any) -> float:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf  # type: ignore[operator]
        except ValueError:
            pass
    raise Misfit("a number")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and (known := _BOOLEANS.get(value.lower())) is not None:
        return known
    raise Misfit("a boolean")


def _nothing(value: Any) -> None:
    if value is not None:
        raise Misfit("null")


_SCALARS: dict[Any, Convert] = {
    str: _string,
    int: _integer,
    float: _number,
    bool: _boolean,
    type(None): _nothing,
    Any: lambda value: value,
}


@cache
def _converter(annotation: Any) -> Convert:
    origin = get_origin(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin is Annotated:
        return _bounded(*get_args(annotation))
    if origin is Literal:
        return _literal(get_args(annotation))
    if origin is list:
        return _list(_converter(get_args(annotation)[0]))
    if origin is dict:
        return _mapping(_converter(get_args(annotation)[1]))
    if origin in (Union, types.UnionType):
        return _union(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _struct(annotation)
    raise TypeError(f"no lax conversion for {annotation!r}")


def _bounded(inner: Any, *constraints: Any) -> Convert:
    convert_inner = _converter(inner)
    metas = [constraint for constraint in constraints if isinstance(constraint, Meta)]

    def bounded(value: Any) -> Any:
        result = convert_inner(value)
        for meta in metas:
            if meta.ge is not None and result < meta.ge:
                raise Misfit(f"at least {meta.ge}")
            if meta.le is not None and result > meta.le:
                raise Misfit(f"at most {meta.le}")
            if meta.min_length is not None and len(result) < meta.min_length:
                raise Misfit(f"a length of at least {meta.min_length}")
            if meta.max_length is not None and len(result) > meta.max_length:
                raise Misfit(f"a length of at most {meta.max_length}")
        return result

    return bounded


def _literal(words: tuple[Any, ...]) -> Convert:
    def literal(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return value
        raise Misfit("one of " + ", ".join(repr(word) for word in words))

    return literal


def _list(item: Convert) -> Convert:
    def convert_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Misfit("a list")
        result: list[Any] = []
        try:
            for element in value:
                result.append(item(element))
        except Misfit as misfit:
            raise misfit.under(len(result)) from None
        return result

    return convert_list


def _mapping(item: Convert) -> Convert:
    def convert_mapping(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Misfit("an object")
        result: dict[str, Any] = {}
        for key, element in value.items():
            try:
                result[key] = item(element)
            except Misfit as misfit:
                raise misfit.under(key) from None
        return result

    return convert_mapping


def _union(members: tuple[Any, ...]) -> Convert:
    """The member whose type the value has already, else the first that takes it; else the first's misfit."""
    nullable = type(None) in members
    branches = [member for member in members if member not in (type(None), UnsetType)]
    exact = {branch: _converter(branch) for branch in branches if branch in (str, int, float)}
    converters = [_converter(branch) for branch in branches]

    def union(value: Any) -> Any:
        if value is None and nullable:
            return None
        if (same := exact.get(type(value))) is not None:
            return same(value)
        first: Misfit | None = None
        for converter in converters:
            try:
                return converter(value)
            except Misfit as misfit:
                first = first or misfit
        assert first is not None
        try:
            raise first
        finally:
            del first  # a frame and an error that know each other are garbage for the collector

    return union


def _struct(kind: type[Struct]) -> Convert:
    wider: dict[str, Any] = getattr(kind, "lax", {})
    fields = []
    for field in msgspec.structs.fields(kind):
        required = field.default is NODEFAULT and field.default_factory is NODEFAULT
        annotation = wider.get(field.name, field.type)
        converter = annotation if isinstance(annotation, types.FunctionType) else _converter(annotation)
        fields.append((field.name, field.encode_name, required, converter))

    def convert_struct(value: Any) -> Struct:
        if not isinstance(value, dict):
            raise Misfit("an object")
        arguments: dict[str, Any] = {}
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
        try:
            if first is not None:
                raise first
        finally:
            del first  # see above
        return kind(**arguments)

    return convert_struct
