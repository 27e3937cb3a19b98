"""Draws objects whose properties are all plain values, from a plan that is read once.

Such are the parameters of most tools. `ObjectDraw` draws the same objects from the same random
numbers, but searches each property's schemas in each draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from app.extensions.forms.schema.bounds import Size
from app.extensions.forms.schema.keywords import JSON, Keywords, Schema
from app.extensions.forms.schema.merged_schema import MergedSchema
from app.extensions.forms.schema.number_draw import Range, draw_number
from app.extensions.forms.schema.text_draw import texts_for
from config.settings import ToolSettings

OBJECT_KEYWORDS = frozenset(["type", "properties", "required", "additionalProperties"])
TYPE_ONLY = frozenset(["type"])
ENUM_ONLY = frozenset(["enum"])
TYPE_AND_ENUM = frozenset(["type", "enum"])
PLAIN_TYPES = frozenset(["boolean", "integer", "null", "number", "string"])
MAX_OPTIONS = 1000
"""Maximum options of an ``enum``: `Draw` tries more in another order."""


class FlatProperty(NamedTuple):
    """A property with one type, or with options."""

    kind: str
    """A JSON type, ``enum``, or ``texts``: an ``enum`` of texts that also has a type."""
    choices: Sequence[JSON]
    """Options, or the texts of a string."""
    merged: MergedSchema


class FlatObject:
    """Draws objects of usual and of frugal size."""

    def __init__(self, properties: Mapping[str, FlatProperty], required: Sequence[str]) -> None:
        self._properties = properties
        self._required = required
        self._optional = [name for name in properties if name not in required]
        self._has_fixed_names = [*properties] == [*required]
        """Every property is required, in the order of the schema."""

    def draw(self, rng: Random, usual: ToolSettings, size: Size) -> dict[str, JSON]:
        """Returns an object; `usual` has the ranges of its numbers."""
        drawn: dict[str, JSON] = {}
        for name in self._required:
            drawn[name] = self._draw_property(name, rng, usual)
        if self._has_fixed_names:
            return drawn
        if not self._optional:
            return self._in_order(drawn)
        probability = usual.tool_call_not_required_param_probability / 100
        chosen: list[str] = []
        for name in self._optional:
            if rng.random() < probability and size is Size.USUAL:
                chosen.append(name)
        if not drawn and not chosen and probability:  # not empty by chance
            chosen = rng.sample(self._optional, len(self._optional))[:1]
        for name in chosen:
            drawn[name] = self._draw_property(name, rng, usual)
        return self._in_order(drawn)

    def _in_order(self, drawn: Mapping[str, JSON]) -> dict[str, JSON]:
        """Returns the object with its properties in the order of the schema."""
        return {name: drawn[name] for name in self._properties if name in drawn}

    def _draw_property(self, name: str, rng: Random, usual: ToolSettings) -> JSON:
        kind, choices, merged = self._properties[name]
        match kind:
            case "string" | "enum":
                return rng.choice(choices)
            case "texts":
                return rng.sample(choices, len(choices))[0]
            case "boolean":
                return rng.random() < 0.5
            case "integer":
                integers = Range(
                    usual.min_tool_call_integer_param, usual.max_tool_call_integer_param
                )
                return draw_number(merged, rng, integers, whole=True)
            case "number":
                numbers = Range(usual.min_tool_call_number_param, usual.max_tool_call_number_param)
                return draw_number(merged, rng, numbers, whole=False)
        return None


def flat_object(schema: Schema) -> FlatObject | None:
    """Returns the plan of an object whose properties are all plain values; None for others."""
    if not isinstance(schema, dict) or not schema.keys() <= OBJECT_KEYWORDS:
        return None
    declared: Mapping[str, Schema] = schema.get("properties", {})
    is_map = schema.get("additionalProperties", False) is not False
    required = list(dict.fromkeys(schema.get("required", ())))
    if list(schema.get("type", ())) != ["object"] or is_map and not declared:
        return None
    properties: dict[str, FlatProperty] = {}
    for name, property_schema in declared.items():
        flat = _flat_property(name, property_schema)
        if flat is None:
            return None
        properties[name] = flat
    if not properties.keys() >= set(required):
        return None
    return FlatObject(properties, required)


def _flat_property(name: str, schema: Schema) -> FlatProperty | None:
    if not isinstance(schema, dict):
        return None
    merged = MergedSchema([schema])
    keywords = schema.keys()
    if keywords == TYPE_ONLY and len(schema["type"]) == 1:
        [kind] = schema["type"]
        if kind in PLAIN_TYPES:
            return FlatProperty(kind, texts_for(name), merged)
    options: Sequence[JSON] = schema.get("enum", ())
    if not 0 < len(options) <= MAX_OPTIONS:
        return None
    if keywords == ENUM_ONLY:
        return FlatProperty("enum", options, merged)
    if keywords == TYPE_AND_ENUM and _are_texts(schema, options):
        return FlatProperty("texts", options, merged)
    return None


def _are_texts(schema: Keywords, options: Sequence[JSON]) -> bool:
    """Returns whether all options are texts, and texts are allowed."""
    return "string" in schema["type"] and all(isinstance(option, str) for option in options)
