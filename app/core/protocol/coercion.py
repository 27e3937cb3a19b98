"""Lax conversion of parsed JSON to request structs, with the rules of pydantic.

This is the slow path of decoding, only for bodies that the strict msgspec decoder rejects. Lax
means that ``"5"``, ``5.0`` and ``true`` are integers, ``"yes"`` is a boolean, and integers are
floats. The first invalid value in declaration order decides the error, and its path becomes the
client's ``param``. Start reading at `convert`.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct, UnsetType
from msgspec.structs import FieldInfo
from msgspec.structs import fields as fields_of

T = TypeVar("T", bound=Struct)
K = TypeVar("K", str, int)
Converter = Callable[[object], object]
Path = tuple[str | int, ...]
"""Keys and list indexes that lead from a body to a value."""

LaxFields = Mapping[str, Hashable]
"""Names of fields, each with a wider annotation or a function, for the lax conversion."""
JsonObject = dict[str, object]
"""A JSON object of a client, with unchecked contents."""

INTEGER_PATTERN = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
MAX_DIGITS = 4300
BOOLEAN_WORDS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


class ConversionError(Exception):
    """A value does not fit its type; `path` leads to the value from the converted root."""

    def __init__(self, expected: str, *path: str | int) -> None:
        super().__init__(expected)
        self.expected = expected
        self.path = path

    def prefixed(self, step: str | int) -> "ConversionError":
        """Returns the same error, seen from the container that holds the value under `step`."""
        return ConversionError(self.expected, step, *self.path)


def format_param(path: Path) -> str:
    """Formats a path as ``param`` of an error: ``("stop", 0)`` becomes ``body.stop.0``."""
    return ".".join(["body", *map(str, path)])


def convert(kind: type[T], value: object) -> T:
    """Builds a struct of type `kind` from parsed JSON, and drops unknown keys.

    A struct's class attribute ``lax_fields`` maps field names to a wider annotation or a function,
    for inputs that msgspec's types cannot express.

    Raises:
        ConversionError: A value does not fit.
        ApiError: A struct's ``__post_init__`` rejects its values.
    """
    struct: T = convert_value(kind, value)
    return struct


def convert_value(annotation: Hashable, value: object) -> Any:
    """Converts `value` to the type that `annotation` describes.

    Raises:
        ConversionError: A value does not fit.
    """
    return _converter(annotation)(value)


def convert_natural_numbers(value: object) -> object:
    """Converts token ids, or None.

    Raises:
        ConversionError: An item is not an integer or is negative. The path of a negative number is
            the whole list.
    """
    numbers = convert_value(list[int] | None, value)
    if isinstance(numbers, list) and numbers and min(numbers) < 0:
        raise ConversionError("no negative numbers")
    return numbers


def unconverted(value: object) -> object:
    """Returns `value` unchanged: the converter of fields that accept anything."""
    return value


def _to_string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ConversionError("a string")


def _to_integer(value: object) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str) and len(value) <= MAX_DIGITS:
        text = value.strip()
        if INTEGER_PATTERN.fullmatch(text):
            return int(text.partition(".")[0])
    raise ConversionError("an integer")


def _to_number(value: object) -> float:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except OverflowError:
            return math.inf if isinstance(value, int) and value > 0 else -math.inf
        except ValueError:
            pass
    raise ConversionError("a number")


def _to_boolean(value: object) -> bool:
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[value.lower()]
    raise ConversionError("a boolean")


@cache
def _converter(annotation: object) -> Converter:
    scalar_converters: Mapping[object, Converter] = {
        str: _to_string,
        int: _to_integer,
        float: _to_number,
        bool: _to_boolean,
        object: unconverted,
    }
    if annotation in scalar_converters:
        return scalar_converters[annotation]
    origin = get_origin(annotation)
    args = get_args(annotation)
    if origin is Annotated:
        return _strict_converter(annotation, _converter(args[0]))
    if origin is Literal:
        return _strict_converter(annotation, unconverted)
    if origin is list:
        has_scalars = args[0] in scalar_converters or get_origin(args[0]) is Annotated
        return _list_converter(annotation, _converter(args[0]), has_scalars)
    if origin is dict:
        return _object_converter(_converter(args[1]))
    if origin in (Union, UnionType):
        return _converter_of_members(args)
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _struct_converter(annotation)
    raise TypeError(f"no lax conversion for {annotation!r}")


def _strict_converter(annotation: object, convert_first: Converter) -> Converter:
    """Converts with `convert_first`, and then requires the constraints of `annotation`."""

    def convert_strictly(value: object) -> object:
        value = convert_first(value)
        try:
            return msgspec.convert(value, annotation)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            # UnicodeEncodeError: msgspec cannot compare a lone surrogate with the words of an enum.
            expected = str(error).removeprefix("Expected ")
            expected = expected.replace("Invalid enum value", "another value than")
            raise ConversionError(expected) from None

    return convert_strictly


def _list_converter(annotation: object, convert_item: Converter, has_scalars: bool) -> Converter:
    """Converts a list; msgspec usually converts a list of scalars in one call."""

    def convert_list(value: object) -> object:
        if not isinstance(value, list):
            raise ConversionError("a list")
        if has_scalars:
            try:
                return msgspec.convert(value, annotation)
            except (msgspec.ValidationError, UnicodeEncodeError):
                pass
        return [element for _, element in _convert_items(convert_item, enumerate(value))]

    return convert_list


def _object_converter(convert_item: Converter) -> Converter:
    """Converts the values of a JSON object."""

    def convert_object(value: object) -> object:
        if not isinstance(value, dict):
            raise ConversionError("an object")
        return dict(_convert_items(convert_item, value.items()))

    return convert_object


def _convert_items(
    convert_item: Converter, pairs: Iterable[tuple[K, object]]
) -> Iterator[tuple[K, object]]:
    for step, element in pairs:
        try:
            yield step, convert_item(element)
        except ConversionError as error:
            raise error.prefixed(step) from None


def _converter_of_members(members: tuple[object, ...]) -> Converter:
    branches = [member for member in members if member not in (NoneType, UnsetType)]
    structs = [kind for kind in branches if isinstance(kind, type) and issubclass(kind, Struct)]
    if len(structs) == len(branches) and all(kind.__struct_config__.tag for kind in structs):
        convert_member = _tagged_converter(structs)
    else:
        convert_member = _union_converter(branches)
    if NoneType not in members:
        return convert_member

    def convert_nullable(value: object) -> object:
        if value is None:
            return None
        return convert_member(value)

    return convert_nullable


def _union_converter(branches: Iterable[object]) -> Converter:
    """Converts to the member of the value's exact type, else to the first member that fits."""
    converters = {branch: _converter(branch) for branch in branches}

    def convert_union(value: object) -> object:
        exact_type = type(value)
        if exact_type in (str, int, float) and exact_type in converters:
            return converters[exact_type](value)
        failures: list[tuple[str, Path]] = []  # no exceptions: they would refer to this frame
        for convert_member in converters.values():
            try:
                return convert_member(value)
            except ConversionError as error:
                failures.append((error.expected, error.path))
        first_path = failures[0][1]
        alternatives = [expected for expected, path in failures if path == first_path]
        raise ConversionError(", or ".join(alternatives), *first_path)

    return convert_union


def _tagged_converter(structs: Iterable[type[Struct]]) -> Converter:
    """Converts to the struct with the value's tag; the path of an error includes the tag."""
    converters: dict[object, Converter] = {}
    for kind in structs:
        converters[kind.__struct_config__.tag] = _converter(kind)
        tag_field = kind.__struct_config__.tag_field or "type"

    def convert_tagged(value: object) -> object:
        tag = value.get(tag_field) if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in converters:
            raise ConversionError(f"{tag_field} to be one of {', '.join(map(str, converters))}")
        try:
            return converters[tag](value)
        except ConversionError as error:
            raise error.prefixed(tag) from None

    return convert_tagged


def _field_converters(kind: type[Struct]) -> Iterator[tuple[FieldInfo, Converter]]:
    lax_fields: LaxFields = getattr(kind, "lax_fields", {})
    for field in fields_of(kind):
        convert_field = lax_fields.get(field.name, field.type)
        if not isinstance(convert_field, FunctionType):
            convert_field = _converter(convert_field)
        yield field, convert_field


def _struct_converter(kind: type[Struct]) -> Converter:
    """Converts a JSON object to a struct of type `kind`."""
    fields = [*_field_converters(kind)]

    def convert_struct(value: object) -> object:
        """Converts every field, and raises the first `ConversionError`.

        An `ApiError` of any field takes precedence.
        """
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise ConversionError("an object")
        arguments: JsonObject = {}
        failures: list[tuple[str, Path]] = []
        for field, convert_field in fields:
            key = field.encode_name
            try:
                if key in value:
                    arguments[field.name] = convert_field(value[key])
                elif field.required:
                    raise ConversionError("a value, it is missing")
            except ConversionError as error:
                failures.append((error.expected, (key, *error.path)))
        if kind.__struct_config__.forbid_unknown_fields:
            unknown_keys = value.keys() - {field.encode_name for field, _ in fields}
            failures += [("no such field", (key,)) for key in sorted(unknown_keys)]
        for expected, path in failures:
            raise ConversionError(expected, *path)
        return kind(**arguments)

    return convert_struct
