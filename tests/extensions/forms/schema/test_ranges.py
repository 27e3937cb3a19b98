"""Where a schema leaves a choice, the settings decide (simulator.md 7.4)."""

from random import Random
from typing import Any

import pytest

from config.settings import ToolSettings
from tests.extensions.forms.schema.drawing import sample

RANGES = ToolSettings(
    min_tool_call_integer_param=20,
    max_tool_call_integer_param=30,
    min_tool_call_number_param=1.5,
    max_tool_call_number_param=2.5,
    min_tool_call_array_param_length=2,
    max_tool_call_array_param_length=3,
    tool_call_not_required_param_probability=100,
    object_tool_call_not_required_field_probability=0,
)


def draws(schema: Any, usual: ToolSettings = RANGES) -> list[Any]:
    return [sample(schema, Random(seed), usual) for seed in range(100)]


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
def test_generated_integers_obey_the_configured_range_and_the_schema(
    bounds: Any, drawn: range
) -> None:
    assert set(draws({"type": "integer", **bounds})) == set(drawn)


def test_numbers_without_bounds_use_the_configured_range() -> None:
    drawn = draws({"type": "number"})
    assert 1.5 <= min(drawn) < 1.6 and 2.4 < max(drawn) <= 2.5
    assert max(draws({"type": "integer", "minimum": 2**63 - 3})) == 2**63 - 1


def test_schema_overrides_the_configured_range_of_array_lengths() -> None:
    def lengths(**keywords: Any) -> set[int]:
        return {
            len(value) for value in draws({"type": "array", "items": {"type": "null"}, **keywords})
        }

    assert lengths() == {2, 3}
    assert lengths(minItems=1) == {1, 2, 3}
    assert lengths(maxItems=4) == {2, 3, 4}
    assert lengths(minItems=6) == {6}
    assert lengths(maxItems=1) == {1}


def test_optional_properties_are_included_with_the_configured_probability() -> None:
    null = {"type": "null"}
    inner = {"type": "object", "properties": {"a": null, "b": null}, "required": ["a"]}
    schema = {"type": "object", "properties": {"a": inner}}
    assert draws(schema)[0] == {"a": {"a": None}}
    assert draws(schema, ToolSettings(tool_call_not_required_param_probability=0)) == [{}] * 100
    half = ToolSettings(tool_call_not_required_param_probability=100)
    assert 30 < sum("b" in value["a"] for value in draws(schema, half)) < 70


def test_generated_object_has_at_least_one_property() -> None:
    """Where nothing is required, a reader finds one property at least, on every floor."""
    users = {"type": "array", "items": {"$ref": "#/$defs/user"}}
    user = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    }
    schema = {"type": "object", "properties": {"users": users}, "$defs": {"user": user}}
    drawn = draws(schema, ToolSettings())
    assert all(value["users"] for value in drawn)
    names = {tuple(name) for value in drawn for name in value["users"]}
    assert names == {("name",), ("age",), ("name", "age")}


def test_generated_object_is_empty_only_if_no_property_can_be_drawn() -> None:
    schema = {"type": "object", "properties": {"a": False, "b": {"type": "null"}}}
    assert draws({**schema, "maxProperties": 0}, ToolSettings()) == [{}] * 100
    assert draws({"type": "object", "properties": {"a": False}}, ToolSettings()) == [{}] * 100
    assert draws(schema, ToolSettings(tool_call_not_required_param_probability=0)) == [{}] * 100
    assert draws(schema, ToolSettings()) == [{"b": None}] * 100
