"""Where a schema leaves a choice, the settings decide (simulator.md 7.4)."""

from __future__ import annotations

from random import Random
from typing import Any

from app.engine.forms.schema import Ranges
from config.settings import ToolSettings
from tests.schema.drawing import sample

RANGES = Ranges((20, 30), (1.5, 2.5), (2, 3), optional_property=1.0, optional_field=0.0)


def draws(schema: Any, ranges: Ranges = RANGES) -> list[Any]:
    return [sample(schema, Random(seed), ranges) for seed in range(100)]


def test_integers_without_bounds_are_of_the_range() -> None:
    assert set(draws({"type": "integer"})) == set(range(20, 31))


def test_numbers_without_bounds_are_of_the_range() -> None:
    drawn = draws({"type": "number"})
    assert 1.5 <= min(drawn) < 1.6
    assert 2.4 < max(drawn) <= 2.5


def test_one_bound_within_the_range_leaves_its_other_end() -> None:
    assert set(draws({"type": "integer", "minimum": 28})) == {28, 29, 30}
    assert set(draws({"type": "integer", "exclusiveMaximum": 22})) == {20, 21}


def test_one_bound_beyond_the_range_is_stayed_near_to() -> None:
    assert set(draws({"type": "integer", "minimum": 1000})) == set(range(1000, 1011))
    assert set(draws({"type": "integer", "maximum": -1000})) == set(range(-1010, -999))


def test_near_the_end_of_64_bits_an_integer_stays_within_them() -> None:
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
    inner = {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "required": ["a"],
    }
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


def test_what_contains_itself_comes_to_an_end() -> None:
    node = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert all(1 < len(str(found)) < 2000 for found in draws(node, Ranges()))


def test_ranges_come_from_the_settings_of_tool_calls() -> None:
    settings = ToolSettings(
        min_tool_call_integer_param=3,
        max_tool_call_array_param_length=9,
        tool_call_not_required_param_probability=25,
    )
    assert Ranges.of(settings) == Ranges((3, 100), (0.0, 100.0), (1, 9), 0.25, 0.5)
