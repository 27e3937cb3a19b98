"""Lax conversion of parsed JSON to request structs, with the rules of pydantic.

This is the slow path of decoding, only for bodies that the strict msgspec decoder rejects. Lax
means that ``"5"``, ``5.0`` and ``true`` are integers, ``"yes"`` is a boolean, and integers are
floats. The first invalid value in declaration order decides the error, and its path becomes the
client's ``param``. Start reading at `converter_of`.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct, UnsetType
from msgspec.structs import FieldInfo
from msgspec.structs import fields as fields_of

from app.core.base.clock.pause import paced
from app.core.protocol.coercion import (
    ConversionError,
    Converter,
    JsonObject,
    LaxFields,
    joined,
    unconverted,
)

K = TypeVar("K", str, int)

INTEGER_PATTERN = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
MAX_DIGITS = 4300
MAX_INVALID_ITEMS = 1000
"""Invalid items of a list or an object that are counted. vLLM counts all, but each takes this
interpreter several microseconds, and a body can have 400,000.
"""
CONSTRAINT_PATTERN = re.compile(
    r"`(?P<type>\w+)` (?P<length>of length )?(?P<operator>[<>]=?) (?P<limit>-?\d+)"
)
"""A constraint in a message of msgspec."""
NUMBER_KINDS = {
    ">=": ("greater_than_equal", "greater than or equal to", "ge"),
    ">": ("greater_than", "greater than", "gt"),
    "<=": ("less_than_equal", "less than or equal to", "le"),
    "<": ("less_than", "less than", "lt"),
}
"""Types of errors for a number, with their words and the key of the limit in their context."""
BOOLEAN_WORDS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


def _to_string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ConversionError("a string", kind="string_type")


def _to_integer(value: object) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str) and len(value) <= MAX_DIGITS:
        text = value.strip()
        if INTEGER_PATTERN.fullmatch(text):
            return int(text.partition(".")[0])
    kind = {str: "int_parsing", float: "int_from_float"}.get(type(value), "int_type")
    raise ConversionError("an integer", kind=kind)


def _to_number(value: object) -> float:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except OverflowError:
            return math.inf if isinstance(value, int) and value > 0 else -math.inf
        except ValueError:
            pass
    kind = "float_parsing" if isinstance(value, str) else "float_type"
    raise ConversionError("a number", kind=kind)


def _to_boolean(value: object) -> bool:
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[value.lower()]
    kind = "bool_parsing" if isinstance(value, int | float | str) else "bool_type"
    raise ConversionError("a boolean", kind=kind)


@cache
def converter_of(annotation: object) -> Converter:
    """Returns the function that converts to the type that `annotation` describes."""
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
        return _strict_converter(annotation, converter_of(args[0]))
    if origin is Literal:
        return _literal_converter(args)
    if origin is list:
        has_scalars = args[0] in scalar_converters or get_origin(args[0]) is Annotated
        return _list_converter(annotation, converter_of(args[0]), has_scalars)
    if origin is dict:
        return _object_converter(converter_of(args[1]))
    if origin in (Union, UnionType):
        return _converter_of_members(args)
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _struct_converter(annotation)
    raise TypeError(f"values cannot be converted to {annotation!r}")


def _strict_converter(annotation: object, convert_first: Converter) -> Converter:
    """Converts with `convert_first`, and then requires the constraints of `annotation`."""

    def convert_strictly(value: object) -> object:
        value = convert_first(value)
        try:
            return msgspec.convert(value, annotation)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise _broken_constraint(value, str(error)) from None

    return convert_strictly


def _broken_constraint(value: object, problem: str) -> ConversionError:
    """Returns the error for a message of msgspec, such as ``Expected `int` >= 0``."""
    expected = problem.removeprefix("Expected ")
    constraint = CONSTRAINT_PATTERN.match(expected)
    if constraint is None:
        return ConversionError(expected)
    limit = int(constraint["limit"])
    if constraint["length"] is None:
        kind, words, key = NUMBER_KINDS[constraint["operator"]]
        return ConversionError(f"{words} {limit}", kind=kind, context={key: limit})
    return _wrong_length(value, constraint["operator"], limit)


def _wrong_length(value: object, operator: str, limit: int) -> ConversionError:
    """Returns the error for a text, a list or an object that is too short or too long."""
    is_short = operator == ">="
    key = "min_length" if is_short else "max_length"
    end = "short" if is_short else "long"
    bound = f"at {'least' if is_short else 'most'} {limit}"
    plural = "" if limit == 1 else "s"
    if isinstance(value, str):
        message = f"String should have {bound} character{plural}"
        return ConversionError(message, kind=f"string_too_{end}", context={key: limit})
    name = "List" if isinstance(value, list) else "Dictionary"
    length = len(value) if isinstance(value, list | dict) else 0
    return ConversionError(
        f"{name} should have {bound} item{plural} after validation, not {length}",
        kind=f"too_{end}",
        context={"field_type": name, key: limit, "actual_length": length},
    )


def _literal_converter(words: tuple[object, ...]) -> Converter:
    """Converts to one of `words`."""
    word_types = {type(word) for word in words}
    *first_words, last_word = map(repr, words)
    expected = last_word
    if first_words:
        expected = f"{', '.join(first_words)} or {last_word}"

    def convert_word(value: object) -> object:
        if value in words and type(value) in word_types:
            return value
        raise ConversionError(expected, kind="literal_error", context={"expected": expected})

    return convert_word


def _list_converter(annotation: object, convert_item: Converter, has_scalars: bool) -> Converter:
    """Converts a list; msgspec usually converts a list of scalars in one call."""

    def convert_list(value: object) -> object:
        if not isinstance(value, list):
            raise ConversionError("a list", kind="list_type")
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
            raise ConversionError("an object", kind="dict_type")
        return dict(_convert_items(convert_item, value.items()))

    return convert_object


def _convert_items(
    convert_item: Converter, pairs: Iterable[tuple[K, object]]
) -> Iterator[tuple[K, object]]:
    """Yields converted items with their keys; other requests run between items of a long list.

    The errors are raised after the last item, or after `MAX_INVALID_ITEMS` errors.
    """
    failures: list[ConversionError] = []
    for step, element in paced(pairs):
        try:
            yield step, convert_item(element)
        except ConversionError as error:
            failures.append(error.prefixed(step))
            if len(failures) == MAX_INVALID_ITEMS:
                break
    if failures:
        raise joined(failures)


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
    converters = {branch: converter_of(branch) for branch in branches}

    def convert_union(value: object) -> object:
        exact_type = type(value)
        if exact_type in (str, int, float) and exact_type in converters:
            return converters[exact_type](value)
        # Copies: an exception that was raised would refer to this frame.
        failures: list[ConversionError] = []
        for convert_member in converters.values():
            try:
                return convert_member(value)
            except ConversionError as error:
                failures.append(error.prefixed())
        raise joined(failures)

    return convert_union


def _tagged_converter(structs: Iterable[type[Struct]]) -> Converter:
    """Converts to the struct with the value's tag; the path of an error includes the tag."""
    converters: dict[object, Converter] = {}
    for kind in structs:
        converters[kind.__struct_config__.tag] = converter_of(kind)
        tag_field = kind.__struct_config__.tag_field or "type"

    def convert_tagged(value: object) -> object:
        tag = value.get(tag_field) if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in converters:
            raise _unknown_tag(value, tag_field, ", ".join(map(repr, converters)))
        try:
            return converters[tag](value)
        except ConversionError as error:
            raise error.prefixed(tag) from None

    return convert_tagged


def _unknown_tag(value: object, tag_field: str, tags: str) -> ConversionError:
    """Returns the error for a value whose tag is missing or is none of `tags`."""
    if not isinstance(value, dict):
        return ConversionError("an object", kind="model_attributes_type")
    context: JsonObject = {"discriminator": repr(tag_field)}
    if tag_field not in value:
        message = f"Unable to extract tag using discriminator {tag_field!r}"
        return ConversionError(message, kind="union_tag_not_found", context=context)
    tag = value[tag_field]
    message = (
        f"Input tag {str(tag)!r} found using {tag_field!r} does not match any of the "
        f"expected tags: {tags}"
    )
    context |= {"tag": str(tag), "expected_tags": tags}
    return ConversionError(message, kind="union_tag_invalid", context=context)


def _field_converters(kind: type[Struct]) -> Iterator[tuple[FieldInfo, Converter]]:
    lax_fields: LaxFields = getattr(kind, "lax_fields", {})
    for field in fields_of(kind):
        convert_field = lax_fields.get(field.name, field.type)
        if not isinstance(convert_field, FunctionType):
            convert_field = converter_of(convert_field)
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
            raise ConversionError("an object", kind="model_attributes_type")
        arguments: JsonObject = {}
        failures: list[ConversionError] = []
        for field, convert_field in fields:
            key = field.encode_name
            try:
                if key in value:
                    arguments[field.name] = convert_field(value[key])
                elif field.required:
                    failures.append(
                        ConversionError("a value, which is missing", key, kind="missing")
                    )
            except ConversionError as error:
                failures.append(error.prefixed(key))
        if kind.__struct_config__.forbid_unknown_fields:
            known_keys = {field.encode_name for field, _ in fields}
            known_keys.add(kind.__struct_config__.tag_field or "")
            unknown_keys = value.keys() - known_keys
            unknown = partial(ConversionError, "no such field", kind="extra_forbidden")
            failures += map(unknown, sorted(unknown_keys))
        if failures:
            raise joined(failures)
        return kind(**arguments)

    return convert_struct
