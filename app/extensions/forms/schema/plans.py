"""Draws values of simple schemas, from a plan that is read once.

Most tools have such parameters. `Draw` draws the same values from the same random numbers,
but searches the schemas of each property in each draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol

from app.extensions.forms.schema.bounds import Size, WorkBudget
from app.extensions.forms.schema.keywords import JSON, Keywords, Schema
from app.extensions.forms.schema.merged_schema import MergedSchema
from app.extensions.forms.schema.number_draw import Range, draw_number
from app.extensions.forms.schema.text_draw import FORMAT_WRITERS, TextDraw, texts_for
from config.settings import ToolSettings

OBJECT_KEYWORDS = frozenset(["type", "properties", "required", "additionalProperties"])
ARRAY_KEYWORDS = frozenset(["type", "items", "minItems", "maxItems"])
NUMBER_KEYWORDS = frozenset(["type", "minimum", "maximum", "default"])
TEXT_KEYWORDS = frozenset(["type", "minLength", "maxLength", "default"])
TYPE_ONLY = frozenset(["type"])
TYPE_AND_FORMAT = frozenset(["type", "format"])
ENUM_ONLY = frozenset(["enum"])
TYPE_AND_ENUM = frozenset(["type", "enum"])
IGNORED_BY_ENUM = frozenset(["default"])
MAX_OPTIONS = 1000
"""Maximum options of an ``enum``: `Draw` tries more in another order."""
MAX_BOUND = 1 << 53
"""Maximum distance of a bound of numbers from 0, which floats represent exactly."""
MAX_LENGTH = 4096
"""Maximum of `minLength`: longer texts take longer than an uninterrupted draw may."""
MAX_VALUES = 150
"""Maximum values of a planned draw: `Draw` makes further ones small."""
CHARACTERS_PER_VALUE = 256
"""Characters of a long text that count as a value, as a planned draw does not pause."""
OPTIONS_PER_VALUE = 64
"""Options of an ``enum`` in random order that count as a value."""
MAX_DEPTH = 3
"""Maximum levels of objects and lists in others: `Draw` makes the values of deeper ones small."""
MAX_EXTRA_ITEMS = 15
"""Maximum items beyond the minimum, where only the schema sets a limit."""


class Plan(Protocol):
    """Draws the values of one schema."""

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns a value of usual or of frugal size; `usual` has the ranges of numbers."""

    def max_values(self, usual: ToolSettings) -> int:
        """Returns how many values one draw has at most; long work counts as several."""


class ScalarPlan:
    """Draws values without parts."""

    def max_values(self, usual: ToolSettings) -> int:
        """Returns 1."""
        return 1


class NullPlan(ScalarPlan):
    """Draws nulls."""

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns null."""
        return None


class BooleanPlan(ScalarPlan):
    """Draws booleans."""

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns a boolean."""
        return rng.random() < 0.5


class ChoicePlan(ScalarPlan):
    """Draws one of the options of an ``enum``, or of the texts for a property's name."""

    def __init__(self, options: Sequence[JSON]) -> None:
        self._options = options

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns an option."""
        return rng.choice(self._options)


class TypedEnumPlan(ScalarPlan):
    """Draws one of the texts of an ``enum`` that also has a type, in `Draw`'s order."""

    def __init__(self, options: Sequence[JSON]) -> None:
        self._options = options

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns a text."""
        return rng.sample(self._options, len(self._options))[0]

    def max_values(self, usual: ToolSettings) -> int:
        """Returns 1, or more for many options."""
        return 1 + len(self._options) // OPTIONS_PER_VALUE


class IntegerPlan(ScalarPlan):
    """Draws integers."""

    def __init__(self, merged: MergedSchema) -> None:
        self._merged = merged

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns an integer."""
        integers = Range(usual.min_tool_call_integer_param, usual.max_tool_call_integer_param)
        return draw_number(self._merged, rng, integers, whole=True)


class NumberPlan(ScalarPlan):
    """Draws numbers."""

    def __init__(self, merged: MergedSchema) -> None:
        self._merged = merged

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns a number."""
        numbers = Range(usual.min_tool_call_number_param, usual.max_tool_call_number_param)
        return draw_number(self._merged, rng, numbers, whole=False)


class FormatPlan(ScalarPlan):
    """Draws texts of a ``format``."""

    def __init__(self, write: Callable[[Random], str]) -> None:
        self._write = write

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns a text."""
        return self._write(rng)


class TextPlan(ScalarPlan):
    """Draws texts with a default, or of a limited length."""

    def __init__(self, merged: MergedSchema, name: str) -> None:
        self._merged = merged
        self._name = name

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns a text."""
        budget = WorkBudget(MAX_LENGTH)
        return TextDraw(self._merged, rng, budget, self._name, formats=True).draw(brief=False)

    def max_values(self, usual: ToolSettings) -> int:
        """Returns 1, or more for a long text."""
        return 1 + self._merged.minimum("minLength") // CHARACTERS_PER_VALUE


class Length(NamedTuple):
    """Limits of the length of a list; None is no limit."""

    low: int | None
    high: int | None


class ArrayPlan:
    """Draws lists."""

    def __init__(self, item: Plan, length: Length) -> None:
        self._item = item
        self._length = length

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Returns a list; one of frugal size has as few items as possible."""
        count = self._length.low or 0
        if size is Size.USUAL:
            count = rng.randint(*self._usual_length(usual))
        return [self._item.draw(rng, usual, size) for _ in range(count)]

    def max_values(self, usual: ToolSettings) -> int:
        """Returns how many values one draw has at most."""
        _, high = self._usual_length(usual)
        return 1 + high * self._item.max_values(usual)

    def _usual_length(self, usual: ToolSettings) -> tuple[int, int]:
        low, limit = self._length
        if low is None:
            low = usual.min_tool_call_array_param_length
        if limit is None:
            return low, max(usual.max_tool_call_array_param_length, low)
        low = min(low, limit)
        return low, min(limit, low + MAX_EXTRA_ITEMS)


class ObjectPlan:
    """Draws objects, `depth` levels down."""

    def __init__(self, properties: Mapping[str, Plan], required: Sequence[str], depth: int) -> None:
        self._properties = properties
        self._required = required
        self._optional = [name for name in properties if name not in required]
        self._is_root = depth == 0
        self._has_fixed_names = [*properties] == [*required]
        """Every property is required, in the order of the schema."""

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> dict[str, JSON]:
        """Returns an object; one of frugal size has only the required properties."""
        properties = self._properties
        drawn: dict[str, JSON] = {}
        for name in self._required:
            drawn[name] = properties[name].draw(rng, usual, size)
        if self._has_fixed_names:
            return drawn
        if not self._optional:
            return self._in_order(drawn)
        percent = usual.object_tool_call_not_required_field_probability
        if self._is_root:
            percent = usual.tool_call_not_required_param_probability
        probability = percent / 100
        chosen: list[str] = []
        for name in self._optional:
            if rng.random() < probability and size is Size.USUAL:
                chosen.append(name)
        if not drawn and not chosen and probability:  # not empty by chance
            chosen = rng.sample(self._optional, len(self._optional))[:1]
        for name in chosen:
            drawn[name] = properties[name].draw(rng, usual, size)
        return self._in_order(drawn)

    def max_values(self, usual: ToolSettings) -> int:
        """Returns how many values one draw has at most."""
        return 1 + sum([plan.max_values(usual) for plan in self._properties.values()])

    def _in_order(self, drawn: Mapping[str, JSON]) -> dict[str, JSON]:
        """Returns the object with its properties in the order of the schema."""
        return {name: drawn[name] for name in self._properties if name in drawn}


def object_plan(schema: Schema, depth: int = 0) -> ObjectPlan | None:
    """Returns the plan of an object with simple properties; None for others."""
    if not isinstance(schema, dict) or not schema.keys() <= OBJECT_KEYWORDS:
        return None
    declared: Mapping[str, Schema] = schema.get("properties", {})
    is_map = schema.get("additionalProperties", False) is not False
    required = list(dict.fromkeys(schema.get("required", ())))
    if list(schema.get("type", ())) != ["object"] or is_map and not declared:
        return None
    properties: dict[str, Plan] = {}
    for name, property_schema in declared.items():
        plan = _plan(name, property_schema, depth + 1)
        if plan is None:
            return None
        properties[name] = plan
    if not properties.keys() >= set(required):
        return None
    return ObjectPlan(properties, required, depth)


def _plan(name: str, schema: Schema, depth: int) -> Plan | None:
    """Returns the plan of the values of the property `name`, `depth` levels down."""
    if not isinstance(schema, dict):
        return None
    keywords = schema.keys()
    if "enum" in keywords:
        return _enum_plan(schema)
    if len(schema.get("type", ())) != 1:
        return None
    [kind] = schema["type"]
    match kind:
        case "null" | "boolean" if keywords == TYPE_ONLY:
            return NullPlan() if kind == "null" else BooleanPlan()
        case "integer" | "number" if keywords <= NUMBER_KEYWORDS and _has_numbers(schema):
            merged = MergedSchema([schema])
            return IntegerPlan(merged) if kind == "integer" else NumberPlan(merged)
        case "string":
            return _text_plan(name, schema)
        case "array" if keywords <= ARRAY_KEYWORDS and depth <= MAX_DEPTH:
            return _array_plan(name, schema, depth)
        case "object" if depth <= MAX_DEPTH:
            return object_plan(schema, depth)
    return None


def _has_numbers(schema: Keywords) -> bool:
    """Returns whether numbers between the bounds are certain."""
    low = schema.get("minimum", -MAX_BOUND)
    high = schema.get("maximum", MAX_BOUND)
    return -MAX_BOUND <= low <= high <= MAX_BOUND and low == int(low) and high == int(high)


def _text_plan(name: str, schema: Keywords) -> Plan | None:
    keywords = schema.keys()
    if keywords == TYPE_ONLY:
        return ChoicePlan(texts_for(name))
    if keywords == TYPE_AND_FORMAT and schema["format"] in FORMAT_WRITERS:
        return FormatPlan(FORMAT_WRITERS[schema["format"]])
    if not keywords <= TEXT_KEYWORDS:
        return None
    low = schema.get("minLength", 0)
    if not low <= schema.get("maxLength", MAX_LENGTH) or low > MAX_LENGTH:
        return None
    return TextPlan(MergedSchema([schema]), name)


def _array_plan(name: str, schema: Keywords, depth: int) -> Plan | None:
    items = schema.get("items")
    low = schema.get("minItems", 0)
    if items is None or not low <= schema.get("maxItems", MAX_VALUES) or low > MAX_VALUES:
        return None
    item = _plan(name.removesuffix("s"), items, depth + 1)
    if item is None:
        return None
    min_items: int | None = None
    max_items: int | None = None
    if "minItems" in schema:
        min_items = int(schema["minItems"])
    if "maxItems" in schema:
        max_items = int(schema["maxItems"])
    return ArrayPlan(item, Length(min_items, max_items))


def _enum_plan(schema: Keywords) -> Plan | None:
    options: Sequence[JSON] = schema["enum"]
    if not 0 < len(options) <= MAX_OPTIONS:
        return None
    keywords = schema.keys() - IGNORED_BY_ENUM
    if keywords == ENUM_ONLY:
        return ChoicePlan(options)
    if keywords == TYPE_AND_ENUM and _are_texts(schema, options):
        return TypedEnumPlan(options)
    return None


def _are_texts(schema: Keywords, options: Sequence[JSON]) -> bool:
    """Returns whether all options are texts, and texts are allowed."""
    return "string" in schema["type"] and all(isinstance(option, str) for option in options)
