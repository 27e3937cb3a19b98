"""Where a schema leaves a choice, the settings decide (simulator.md 7.4)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from app.engine.forms.schema import Ranges
from config.settings import ToolSettings
from tests.schema.drawing import sample

RANGES = Ranges((20, 30), (1.5, 2.5), (2, 3), optional_property=1.0, optional_field=0.0)


def draws(schema: Any, ranges: Ranges = RANGES) -> list[Any]:
    return [sample(schema, Random(seed), ranges) for seed in range(100)]


@pytest.mark.parametrize(
    ("bounds", "drawn"),
    [
        ({}, range(20, 31)),
        ({"minimum": 28}, range(28, 31)),
        ({"exclusiveMaximum": 22}, range(20, 22)),
        ({"minimum": 1000}, range(1000, 1011)),  # beyond the range it is stayed near to
        ({"maximum": -1000}, range(-1010, -999)),
    ],
)
def test_integers_are_of_the_range_as_far_as_their_bounds_leave_it(bounds: Any, drawn: range) -> None:
    assert set(draws({"type": "integer", **bounds})) == set(drawn)


def test_numbers_without_bounds_are_of_the_range_and_integers_within_64_bits() -> None:
    drawn = draws({"type": "number"})
    assert 1.5 <= min(drawn) < 1.6 and 2.4 < max(drawn) <= 2.5
    assert max(draws({"type": "integer", "minimum": 2**63 - 3})) == 2**63 - 1


def test_lengths_of_arrays_are_of_the_range_unless_the_schema_says() -> None:
    def lengths(**keywords: Any) -> set[int]:
        return {len(value) for value in draws({"type": "array", "items": {"type": "null"}, **keywords})}

    assert lengths() == {2, 3}
    assert lengths(minItems=1) == {1, 2, 3}
    assert lengths(maxItems=4) == {2, 3, 4}
    assert lengths(minItems=6) == {6}
    assert lengths(maxItems=1) == {1}


def test_optional_properties_have_a_chance_of_their_own_at_the_top_and_below() -> None:
    null = {"type": "null"}
    inner = {"type": "object", "properties": {"a": null, "b": null}, "required": ["a"]}
    schema = {"type": "object", "properties": {"a": inner}}
    assert draws(schema)[0] == {"a": {"a": None}}
    assert draws(schema, Ranges(optional_property=0.0)) == [{}] * 100
    half = Ranges(optional_property=1.0, optional_field=0.5)
    assert 30 < sum("b" in value["a"] for value in draws(schema, half)) < 70


def test_an_object_is_not_left_empty_by_chance() -> None:
    """Where nothing is required, a reader finds one property at least, on every floor."""
    users = {"type": "array", "items": {"$ref": "#/$defs/user"}}
    user = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"users": users}, "$defs": {"user": user}}
    drawn = draws(schema, Ranges())
    assert all(found["users"] for found in drawn)
    names = {tuple(each) for found in drawn for each in found["users"]}
    assert names == {("name",), ("age",), ("name", "age")}


def test_an_object_is_empty_where_nothing_can_be_in_it_or_a_chance_of_none_says_so() -> None:
    schema = {"type": "object", "properties": {"a": False, "b": {"type": "null"}}}
    assert draws({**schema, "maxProperties": 0}, Ranges()) == [{}] * 100
    assert draws({"type": "object", "properties": {"a": False}}, Ranges()) == [{}] * 100
    assert draws(schema, Ranges(optional_property=0.0)) == [{}] * 100
    assert draws(schema, Ranges()) == [{"b": None}] * 100


def test_ranges_come_from_the_settings_of_tool_calls() -> None:
    chances = {"tool_call_not_required_param_probability": 25, "max_tool_call_array_param_length": 9}
    settings = ToolSettings(min_tool_call_integer_param=3, **chances)
    assert Ranges.of(settings) == Ranges((3, 100), (0.0, 100.0), (1, 9), 0.25, 0.5)
