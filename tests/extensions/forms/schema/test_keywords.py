"""Every keyword is kept, whatever is drawn."""

import json
import re
from collections.abc import Callable
from datetime import date, datetime
from ipaddress import IPv4Address, IPv6Address
from random import Random
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from jsonschema import Draft202012Validator, validators

from app.extensions.forms.schema.bounds import SchemaError, UnsatisfiableError
from app.extensions.forms.schema.text_draw import FORMAT_CHECKER, FORMAT_WRITERS
from config.settings import ToolSettings
from tests.extensions.forms.schema.drawing import sample

TIMES = 20
RANGES = ToolSettings()

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NULL = {"type": "null"}
HIGH = {"type": "integer", "minimum": 1000}
HERE = {"$anchor": "d", "type": "integer"}
SOME = {"type": "array", "minItems": 2, "items": {"anyOf": [{"$ref": "#/$defs/node"}, STRING]}}
CHILDREN = {"type": "object", "properties": {"some": SOME}, "required": ["some"]}
CARD = {"properties": {"card": STRING}, "required": ["card"]}
CASH = {"properties": {"cash": INTEGER}, "required": ["cash"]}

SATISFIABLE: list[Any] = [
    True, {}, {"type": "boolean"}, {"type": ["null", "integer"]}, {"enum": ["a", 1, None, [1], {"b": 2}]},
    {"enum": ["a", 1, None], "type": "integer"}, {"const": {"a": [1, 2.5]}},
    {"properties": {"a": STRING}, "required": ["a"]},
    {"type": "object", "properties": {"a": STRING}, "required": ["a", "b"]},
    {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": INTEGER, "minProperties": 3},
    {"type": "object", "patternProperties": {"^x-": INTEGER}, "additionalProperties": False},
    {"patternProperties": {"^x-[a-z]{3}$": INTEGER}, "additionalProperties": False, "minProperties": 3},
    {"type": "object", "propertyNames": {"pattern": "^[A-Z]{3}$"}, "minProperties": 2},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 2},
    {"type": "object", "minProperties": 12},
    {"type": "object", "properties": {n: {} for n in "abcdef"}, "maxProperties": 2},
    {"required": ["a"], "dependentRequired": {"a": ["b"], "b": ["c"]}},
    {"required": ["a"], "dependentSchemas": {"a": {"properties": {"b": HIGH}, "required": ["b"]}}},
    {"required": ["a"], "dependencies": {"a": ["b"], "b": {"required": ["c"]}}},
    {"type": "array", "items": False},
    {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    {"allOf": [{"prefixItems": [INTEGER]}, {"prefixItems": [{}, STRING], "items": NULL}], "minItems": 4},
    {"type": "array", "items": INTEGER, "contains": {"minimum": 500}},
    {"type": "array", "contains": {"const": 7}, "minContains": 3},
    {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}, "maxContains": 1, "minItems": 4},
    {"contains": False}, {"type": "array", "contains": False, "minContains": 0},
    {"type": "array", "minItems": 40, "items": STRING}, {"type": "array", "maxItems": 0},
    {"type": "array", "items": {"enum": [1, True, 0, False]}, "uniqueItems": True, "minItems": 4},
    {"type": "integer", "minimum": 10_000}, {"type": "number", "maximum": -3.5},
    {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.2},
    {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
    {"type": "integer", "minimum": 0.5, "maximum": 1.5},
    {"type": "integer", "multipleOf": 1000, "minimum": 1},
    {"type": "number", "multipleOf": 0.01, "minimum": 0.01},
    {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer", "minimum": 1},
    {"type": "integer", "minimum": 2**70}, {"type": "number", "minimum": 10**320},
    {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308},
    {"type": "string", "minLength": 300}, {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "pattern": r"^\d{3}-[A-Z]{2}$"}, {"type": "string", "pattern": "b+c"},
    {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "minLength": 30, "maxLength": 31},
    {"type": "string", "pattern": "^abc", "minLength": 20},
    {"type": "string", "allOf": [{"pattern": "^[a-z0-9]{8}$"}, {"pattern": "[0-9]"}]},
    {"type": "string", "format": "date-time"}, {"type": "string", "format": "int32"},
    {"type": "string", "format": "date", "pattern": "^[A-Z]{3}$"},
    {"anyOf": [STRING, INTEGER]}, {"type": "integer", "anyOf": [STRING, {"minimum": 500}]},
    {"oneOf": [CARD, CASH], "type": "object"},
    {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 8}]},
    {"oneOf": [{"properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in "abc"]},
    {"allOf": [{"minimum": 3}, {"maximum": 9}], "type": "integer"}, {"allOf": [CARD, CASH]},
    {"not": {"type": ["string", "object", "array"]}},
    {"type": "integer", "minimum": 1, "maximum": 3, "not": {"enum": [1, 3]}},
    {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a"]}},
    {"type": "string", "not": {"pattern": "^a"}}, {"not": {"not": STRING}},
    {"not": {"anyOf": [STRING, {"type": "number", "minimum": 5}]}},
    {
        "properties": {"a": {"type": "boolean"}, "b": INTEGER}, "required": ["a", "b"],
        "if": {"properties": {"a": {"const": True}}},
        "then": {"properties": {"b": HIGH}}, "else": {"properties": {"b": {"maximum": -1000}}},
    },
    {"type": "integer", "if": {"minimum": 50}, "else": {"multipleOf": 11}},
    {"$ref": "#/$defs/a", "minLength": 20, "$defs": {"a": STRING}},
    {"properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": INTEGER}, "required": ["a"]},
    {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": INTEGER}},
    {"$id": "https://example.com/root", "$ref": "part", "$defs": {"x": {"$id": "part", **INTEGER}}},
    {"$ref": "#here", "$defs": {"a": {"$anchor": "here", **INTEGER}}},
    {"$id": "https://a.com/b", "$ref": "c#d", "$defs": {"x": {"$id": "c", "$defs": {"y": HERE}}}},
    {"$ref": "https://a.com/b#/$defs/y", "$defs": {"x": {"$id": "https://a.com/b", "$defs": {"y": HIGH}}}},
    {"$ref": "#/$defs/x", "$defs": {"x": {"$id": "/x", "$ref": "#/$defs/y", "$defs": {"y": HIGH}},
        "y": NULL}},
    {"$ref": "#/parts/1", "parts": [STRING, INTEGER]},
    {"$ref": "#n", "$defs": {"a": {"$dynamicAnchor": "n", **INTEGER}}},
    {"type": "object", "properties": {"next": {"$ref": "#"}, "value": INTEGER}, "required": ["value"]},
    {"$ref": "#/$defs/node", "$defs": {"node": CHILDREN}},
    {"type": "string", "pattern": "(?<=x)y$", "default": "xy"},
]  # fmt: skip

UNSATISFIABLE: list[Any] = [
    False, {"not": {}}, {"enum": []}, {"enum": ["a"], "type": "integer"}, {"allOf": [STRING, INTEGER]},
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
]  # fmt: skip


PARTS = [schema for schema in SATISFIABLE if "$" not in str(schema)]


def tool_parameters(rng: Random) -> dict[str, Any]:
    """A schema of type object as tools have it, of schemas that can be satisfied."""
    first, other, third, fourth = rng.sample(PARTS, 4)
    inner = {
        "type": "object",
        "properties": {"a": first, "b": {"anyOf": [other, {"type": "null"}]}},
    }
    properties = {"inner": inner, "list": {"type": "array", "items": third}, "c": fourth}
    return {
        "type": "object",
        "properties": properties,
        "required": rng.sample(sorted(properties), 2),
    }


def draws(schema: Any, count: int = TIMES) -> list[Any]:
    """`count` values, each known to satisfy `schema`."""
    validator = validators.validator_for(schema, default=Draft202012Validator)(schema)
    values = [sample(schema, Random(seed), RANGES) for seed in range(count)]
    for value in values:
        assert validator.is_valid(value), value
        assert json.loads(json.dumps(value, allow_nan=False)) == value
    return values


@pytest.mark.parametrize("schema", SATISFIABLE, ids=str)
def test_generated_value_is_valid_and_depends_only_on_the_seed(schema: Any) -> None:
    assert draws(schema)[7] == sample(schema, Random(7), RANGES)


@pytest.mark.parametrize("schema", UNSATISFIABLE, ids=str)
def test_unsatisfiable_schema_is_rejected(schema: Any) -> None:
    with pytest.raises(UnsatisfiableError):
        sample(schema, Random(1), RANGES)


DRAFT = "http://json-schema.org/draft-0{}/schema#"
DRAFTS: dict[str, Any] = {
    "4": {"type": "integer", "minimum": 7, "exclusiveMinimum": True},
    "6": {"type": "array", "items": [STRING], "minItems": 2},
    "7": {"type": "array", "items": [STRING], "additionalItems": INTEGER, "minItems": 3},
    "7: a reference stands alone": {
        "properties": {"a": {"$ref": "#/definitions/a", "type": "integer"}}, "required": ["a"],
        "definitions": {"a": STRING},
    },
    "2019-09": {"type": "array", "items": [STRING], "additionalItems": False, "minItems": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", DRAFTS)
def test_schema_is_interpreted_by_the_draft_that_it_names(name: str) -> None:
    newer = "https://json-schema.org/draft/2019-09/schema"
    draws(DRAFTS[name] | {"$schema": newer if len(name) == 7 else DRAFT.format(name[0])})


def test_values_are_generated_from_each_branch_of_an_any_of_schema() -> None:
    assert set(draws({"anyOf": [{"const": n} for n in range(4)]}, 60)) == {0, 1, 2, 3}


def test_generated_properties_keep_the_order_of_the_schema() -> None:
    names = ["zeta", "alpha", "mid"]
    schema = {
        "type": "object",
        "properties": dict.fromkeys(names, STRING),
        "required": sorted(names),
    }
    assert list(sample(schema, Random(1), RANGES)) == names


def test_generated_city_and_email_strings_look_realistic() -> None:
    properties = {"home_city": STRING, "email": STRING}
    for value in draws({"type": "object", "properties": properties, "required": [*properties]}):
        assert value["home_city"][0].isupper() and "@" in value["email"]


def test_remote_reference_is_not_fetched() -> None:
    with pytest.raises(SchemaError, match=r"properties\.a\.\$ref"):
        sample({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, Random(1), RANGES)


def test_value_generated_for_a_recursive_schema_is_smaller_than_20_kb() -> None:
    tree = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefghij"}}
    always = ToolSettings(
        tool_call_not_required_param_probability=100,
        object_tool_call_not_required_field_probability=100,
    )
    for seed in range(10):
        assert len(json.dumps(sample(tree, Random(seed), always))) < 20_000


READERS: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
    "uuid": UUID,
    "uri": lambda text: urlsplit(text).netloc,
    "regex": re.compile,
    "email": re.compile(r"[a-z.]+@[a-z.]+").fullmatch,
    "hostname": re.compile(r"[a-z]+(\.[a-z]+)+").fullmatch,
    "duration": re.compile(r"P\d+DT\d+H").fullmatch,
    "json-pointer": re.compile(r"/.*", re.DOTALL).fullmatch,
}


@pytest.mark.parametrize("name", FORMAT_WRITERS)
def test_generated_string_conforms_to_its_format(name: str) -> None:
    for seed in range(20):
        text = sample({"type": "string", "format": name}, Random(seed), ToolSettings())
        assert FORMAT_CHECKER.conforms(text, name)
        assert READERS.get(name, str)(text)


def test_date_time_check_follows_rfc_3339() -> None:
    for name, text in (
        ("date", "2026-02-30"),
        ("date-time", "2026-03-14 09:30:00Z"),
        ("date-time", "2026-02-30T09:30:00Z"),
        ("date-time", "2026-02-03T09:30:00"),
        ("uuid", "9b2f6f0e"),
    ):
        assert not FORMAT_CHECKER.conforms(text, name)
    assert FORMAT_CHECKER.conforms("2026-02-03t09:30:00.25z", "date-time")


def test_format_and_length_are_satisfied_together() -> None:
    for text in draws({"type": "string", "format": "email", "minLength": 20, "maxLength": 26}):
        assert "@" in text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "not": {"format": "ipv4"}},
        {"type": "object", "properties": {"a": {"not": {"format": "date"}}}, "required": ["a"]},
        {"oneOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    ],
)
def test_value_that_violates_a_format_assertion_is_not_generated(
    schema: dict[str, Any],
) -> None:
    """A validator that does not assert formats accepts no value of these schemas."""
    with pytest.raises(UnsatisfiableError):
        sample(schema, Random(1), ToolSettings())
    union = {"anyOf": [schema, {"const": 7}]}
    assert sample(union, Random(1), ToolSettings()) == 7
