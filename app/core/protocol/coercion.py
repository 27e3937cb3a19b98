"""Lax conversion of parsed JSON to request structs, with the rules of pydantic.

This is the slow path of decoding, only for bodies that the strict msgspec decoder rejects. Lax
means that ``"5"``, ``5.0`` and ``true`` are integers, ``"yes"`` is a boolean, and integers are
floats. The first invalid value in declaration order decides the error, and its path becomes the
client's ``param``. Start reading at `convert`.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct, UnsetType

T = TypeVar("T", bound=Struct)
K = TypeVar("K", str, int)
Converter = Callable[[object], object]
Path = tuple[str | int, ...]
"""Keys and list indexes that lead from a body to a value."""

JsonObject = dict[str, object]
"""A JSON object of a client, with unchecked contents."""

INTEGER_PATTERN = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
MAX_DIGITS = 4300
SCALAR_TYPES = (str, int, float, bool, object)
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
    struct = _converter(kind)(value)
    assert isinstance(struct, kind)
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
    origin = get_origin(annotation)
    args = get_args(annotation)
    if annotation in SCALAR_TYPES:
        return _converter_of_scalar(annotation)
    if origin is Annotated:
        return StrictConverter(annotation, convert_first=_converter(args[0]))
    if origin is Literal:
        return StrictConverter(annotation, convert_first=unconverted)
    if origin is list:
        is_scalar = args[0] in SCALAR_TYPES or get_origin(args[0]) is Annotated
        return ListConverter(annotation if is_scalar else None, _converter(args[0]))
    if origin is dict:
        return MappingConverter(_converter(args[1]))
    if origin in (Union, UnionType):
        return _converter_of_union(args)
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _converter_of_struct(annotation)
    raise TypeError(f"no lax conversion for {annotation!r}")


def _converter_of_scalar(kind: object) -> Converter:
    converters: Mapping[object, Converter] = {
        str: _to_string,
        int: _to_integer,
        float: _to_number,
        bool: _to_boolean,
        object: unconverted,
    }
    return converters[kind]


def _converter_of_union(members: tuple[object, ...]) -> Converter:
    nullable = NoneType in members
    branches = [member for member in members if member not in (NoneType, UnsetType)]
    structs = [kind for kind in branches if isinstance(kind, type) and issubclass(kind, Struct)]
    if len(structs) == len(branches) and all(kind.__struct_config__.tag for kind in structs):
        return TaggedConverter(
            nullable=nullable,
            tag_field=structs[0].__struct_config__.tag_field or "type",
            by_tag={kind.__struct_config__.tag: _converter(kind) for kind in structs},
        )
    return UnionConverter(
        nullable=nullable,
        by_exact_type={
            branch: _converter(branch) for branch in branches if branch in (str, int, float)
        },
        converters=[_converter(branch) for branch in branches],
    )


def _converter_of_struct(kind: type[Struct]) -> Converter:
    lax_fields: dict[str, Hashable] = getattr(kind, "lax_fields", {})
    fields: list[Field] = []
    for field in msgspec.structs.fields(kind):
        converter = lax_fields.get(field.name, field.type)
        if not isinstance(converter, FunctionType):
            converter = _converter(converter)
        fields.append(
            Field(
                name=field.name,
                key=field.encode_name,
                required=field.default is NODEFAULT and field.default_factory is NODEFAULT,
                convert=converter,
            )
        )
    return StructConverter(kind, fields)


def _convert_items(
    convert_item: Converter, pairs: Iterable[tuple[K, object]]
) -> Iterator[tuple[K, object]]:
    for step, element in pairs:
        try:
            yield step, convert_item(element)
        except ConversionError as error:
            raise error.prefixed(step) from None


@dataclass(frozen=True, slots=True)
class StrictConverter:
    """Converts with `convert_first`, and then requires the constraints of an annotation."""

    annotation: object
    convert_first: Converter

    def __call__(self, value: object) -> object:
        """Returns the converted value, or raises `ConversionError`."""
        value = self.convert_first(value)
        try:
            return msgspec.convert(value, self.annotation)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            # UnicodeEncodeError: msgspec cannot compare a lone surrogate with the words of an enum.
            expected = str(error).removeprefix("Expected ")
            expected = expected.replace("Invalid enum value", "another value than")
            raise ConversionError(expected) from None


@dataclass(frozen=True, slots=True)
class ListConverter:
    """Converts a list.

    `scalars` is the annotation of a list of scalars, which msgspec usually converts in one call.
    """

    scalars: object
    convert_item: Converter

    def __call__(self, value: object) -> object:
        """Returns the converted list, or raises `ConversionError`."""
        if not isinstance(value, list):
            raise ConversionError("a list")
        if self.scalars is not None:
            try:
                return msgspec.convert(value, self.scalars)
            except (msgspec.ValidationError, UnicodeEncodeError):
                pass
        return [element for _, element in _convert_items(self.convert_item, enumerate(value))]


@dataclass(frozen=True, slots=True)
class MappingConverter:
    """Converts the values of a JSON object."""

    convert_item: Converter

    def __call__(self, value: object) -> JsonObject:
        """Returns the converted object, or raises `ConversionError`."""
        if not isinstance(value, dict):
            raise ConversionError("an object")
        return dict(_convert_items(self.convert_item, value.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionConverter:
    """Converts to the member of the value's exact type, else to the first member that fits."""

    nullable: bool
    by_exact_type: Mapping[object, Converter]
    converters: Iterable[Converter]

    def __call__(self, value: object) -> object:
        """Returns the converted value, or raises the first member's `ConversionError`."""
        if value is None and self.nullable:
            return None
        convert_exact = self.by_exact_type.get(type(value))
        if convert_exact is not None:
            return convert_exact(value)
        failures: list[tuple[str, Path]] = []  # no exceptions: they would refer to this frame
        for convert_member in self.converters:
            try:
                return convert_member(value)
            except ConversionError as error:
                failures.append((error.expected, error.path))
        first_path = failures[0][1]
        alternatives = [expected for expected, path in failures if path == first_path]
        raise ConversionError(", or ".join(alternatives), *first_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedConverter:
    """Converts to the struct with the value's tag; the path of an error includes the tag."""

    nullable: bool
    tag_field: str
    by_tag: Mapping[object, Converter]

    def __call__(self, value: object) -> object:
        """Returns the struct, or raises `ConversionError`."""
        if value is None and self.nullable:
            return None
        tag = value.get(self.tag_field) if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in self.by_tag:
            raise ConversionError(
                f"{self.tag_field} to be one of {', '.join(map(str, self.by_tag))}"
            )
        try:
            return self.by_tag[tag](value)
        except ConversionError as error:
            raise error.prefixed(tag) from None


class Field(NamedTuple):
    """One field of a struct: its attribute, its key in JSON, and its converter."""

    name: str
    key: str
    required: bool
    convert: Converter


@dataclass(frozen=True, slots=True)
class StructConverter:
    """Converts a JSON object to a struct of type `kind`."""

    kind: type[Struct]
    fields: Iterable[Field]

    def __call__(self, value: object) -> Struct:
        """Converts every field, and raises the first `ConversionError`.

        An `ApiError` of any field takes precedence.
        """
        if isinstance(value, self.kind):
            return value
        if not isinstance(value, dict):
            raise ConversionError("an object")
        arguments: JsonObject = {}
        failures: list[tuple[str, Path]] = []
        for field in self.fields:
            try:
                if field.key in value:
                    arguments[field.name] = field.convert(value[field.key])
                elif field.required:
                    raise ConversionError("a value, it is missing")
            except ConversionError as error:
                failures.append((error.expected, (field.key, *error.path)))
        if self.kind.__struct_config__.forbid_unknown_fields:
            unknown_keys = value.keys() - {field.key for field in self.fields}
            failures += [("no such field", (key,)) for key in sorted(unknown_keys)]
        for expected, path in failures:
            raise ConversionError(expected, *path)
        return self.kind(**arguments)
