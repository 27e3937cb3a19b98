"""Every keyword is kept, whatever is drawn."""

from __future__ import annotations

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

from app.engine.forms.schema import Ranges, SchemaError, Unsatisfiable
from app.engine.forms.schema.formats import CHECKER, DRAWS
from tests.schema.drawing import sample

TIMES = 30
RANGES = Ranges()

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": INTEGER}, "required": ["value"]}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": STRING,
                "children": {
                    "type": "array",
                    "minItems": 2,
                    "items": {"anyOf": [{"$ref": "#/$defs/node"}, STRING]},
                },
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        }
    },
}
CARD = {"properties": {"card": STRING}, "required": ["card"]}
CASH = {"properties": {"cash": INTEGER}, "required": ["cash"]}

SATISFIABLE: dict[str, Any] = {
    "true": True,
    "nothing": {},
    "type": {"type": "boolean"},
    "types": {"type": ["null", "integer"]},
    "null": {"type": "null"},
    "enum": {"enum": ["a", 1, None, [1], {"b": 2}]},
    "enum and type": {"enum": ["a", 1, None], "type": "integer"},
    "const": {"const": {"a": [1, 2.5]}},
    "const false": {"const": False},
    "properties": {"type": "object", "properties": {"a": STRING, "b": INTEGER}},
    "properties without type": {"properties": {"a": STRING}, "required": ["a"]},
    "required": {"type": "object", "properties": {"a": STRING}, "required": ["a", "b"]},
    "additionalProperties false": {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
    "map": {"type": "object", "additionalProperties": INTEGER, "minProperties": 3},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x-": INTEGER},
        "additionalProperties": False,
    },
    "patternProperties needed": {
        "type": "object",
        "patternProperties": {"^x-[a-z]{3}$": INTEGER},
        "additionalProperties": False,
        "minProperties": 3,
    },
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[A-Z]{3}$"}, "minProperties": 2},
    "propertyNames of enum": {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 2},
    "minProperties": {"type": "object", "minProperties": 12},
    "maxProperties": {"type": "object", "properties": {n: {} for n in "abcdef"}, "maxProperties": 2},
    "dependentRequired": {"required": ["a"], "dependentRequired": {"a": ["b"], "b": ["c"]}},
    "dependentSchemas": {
        "type": "object",
        "properties": {"a": INTEGER, "b": INTEGER},
        "dependentSchemas": {"a": {"properties": {"b": {"minimum": 1000}}, "required": ["b"]}},
    },
    "dependencies": {"required": ["a"], "dependencies": {"a": ["b"], "b": {"required": ["c"]}}},
    "items": {"type": "array", "items": INTEGER},
    "items false": {"type": "array", "items": False},
    "prefixItems": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    "prefixItems of two": {
        "allOf": [{"prefixItems": [INTEGER]}, {"prefixItems": [{}, STRING], "items": {"type": "null"}}],
        "type": "array",
        "minItems": 4,
    },
    "contains": {"type": "array", "items": INTEGER, "contains": {"minimum": 500}},
    "minContains": {"type": "array", "contains": {"const": 7}, "minContains": 3},
    "maxContains": {
        "type": "array",
        "items": {"enum": [1, 2]},
        "contains": {"const": 1},
        "maxContains": 1,
        "minItems": 4,
    },
    "contains nothing": {"contains": False},
    "minContains 0": {"type": "array", "contains": False, "minContains": 0},
    "minItems": {"type": "array", "minItems": 40, "items": STRING},
    "maxItems": {"type": "array", "maxItems": 0},
    "uniqueItems": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 3},
    "uniqueItems of numbers": {
        "type": "array",
        "items": {"enum": [1, True, 0, False]},
        "uniqueItems": True,
        "minItems": 4,
    },
    "minimum": {"type": "integer", "minimum": 10_000},
    "maximum": {"type": "number", "maximum": -3.5},
    "between": {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.2},
    "one integer": {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
    "fractional bounds": {"type": "integer", "minimum": 0.5, "maximum": 1.5},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 1},
    "multipleOf a fraction": {"type": "number", "multipleOf": 0.01, "minimum": 0.01},
    "multiples": {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer", "minimum": 1},
    "multipleOf beyond the range": {"type": "integer", "multipleOf": 1000, "minimum": 1},
    "beyond int64": {"type": "integer", "minimum": 2**70},
    "beyond floats": {"type": "number", "minimum": 10**320},
    "all floats": {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308},
    "minLength": {"type": "string", "minLength": 300},
    "maxLength": {"type": "string", "maxLength": 2},
    "length": {"type": "string", "minLength": 3, "maxLength": 3},
    "pattern": {"type": "string", "pattern": r"^\d{3}-[A-Z]{2}$"},
    "pattern inside": {"type": "string", "pattern": "b+c"},
    "pattern of a length": {
        "type": "string",
        "pattern": "^[a-z]+(-[a-z]+)*$",
        "minLength": 30,
        "maxLength": 31,
    },
    "pattern shorter than the text": {"type": "string", "pattern": "^abc", "minLength": 20},
    "patterns": {"type": "string", "allOf": [{"pattern": "^[a-z0-9]{8}$"}, {"pattern": "[0-9]"}]},
    "format": {"type": "string", "format": "date-time"},
    "format unknown": {"type": "string", "format": "int32"},
    "format that cannot be": {"type": "string", "format": "date", "pattern": "^[A-Z]{3}$"},
    "anyOf": {"anyOf": [STRING, INTEGER]},
    "anyOf with a false branch": {"type": "integer", "anyOf": [STRING, {"minimum": 500}]},
    "oneOf": {"oneOf": [CARD, CASH], "type": "object"},
    "oneOf overlapping": {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 8}]},
    "oneOf by const": {
        "oneOf": [
            {"properties": {"kind": {"const": kind}, "size": INTEGER}, "required": ["kind", "size"]}
            for kind in ("circle", "square", "line")
        ]
    },
    "allOf": {"allOf": [{"minimum": 3}, {"maximum": 9}], "type": "integer"},
    "allOf of objects": {"allOf": [CARD, CASH], "type": "object"},
    "not a type": {"not": {"type": ["string", "object", "array"]}},
    "not an enum": {"type": "integer", "minimum": 1, "maximum": 3, "not": {"enum": [1, 3]}},
    "not required": {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a"]}},
    "not a pattern": {"type": "string", "not": {"pattern": "^a"}},
    "not anyOf": {"not": {"anyOf": [STRING, {"type": "number", "minimum": 5}]}},
    "not not": {"not": {"not": STRING}},
    "if": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": INTEGER},
        "required": ["a", "b"],
        "if": {"properties": {"a": {"const": True}}},
        "then": {"properties": {"b": {"minimum": 1000}}},
        "else": {"properties": {"b": {"maximum": -1000}}},
    },
    "else alone": {"type": "integer", "if": {"minimum": 50}, "else": {"multipleOf": 11}},
    "$ref": {"$ref": "#/$defs/a", "$defs": {"a": STRING}},
    "$ref beside others": {"$ref": "#/$defs/a", "minLength": 20, "$defs": {"a": STRING}},
    "$ref to definitions": {
        "properties": {"a": {"$ref": "#/definitions/x"}},
        "definitions": {"x": INTEGER},
        "required": ["a"],
    },
    "$ref to a strange name": {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": INTEGER}},
    "$ref by $id": {
        "$id": "https://example.com/root",
        "$ref": "part",
        "$defs": {"x": {"$id": "part", "type": "integer"}},
    },
    "$anchor": {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "integer"}}},
    "$anchor under $id": {
        "$id": "https://example.com/root",
        "$ref": "part#here",
        "$defs": {"x": {"$id": "part", "$defs": {"y": {"$anchor": "here", "type": "integer"}}}},
    },
    "$ref into an $id": {
        "$ref": "https://example.com/part#/$defs/y",
        "$defs": {
            "x": {"$id": "https://example.com/part", "$defs": {"y": {"$ref": "#/$defs/z"}, "z": INTEGER}}
        },
    },
    "$ref from within an $id": {
        "$ref": "#/$defs/x",
        "$defs": {"x": {"$id": "/x", "$ref": "#/$defs/y", "$defs": {"y": INTEGER}}, "y": STRING},
    },
    "$ref to what is no keyword": {"$ref": "#/parts/1", "parts": [STRING, INTEGER]},
    "an anchor of a dynamic reference": {
        "$ref": "#n",
        "$defs": {"a": {"$dynamicAnchor": "n", "type": "integer"}},
    },
    "list that ends": NODE,
    "tree that ends": TREE,
    "default of an odd pattern": {"type": "string", "pattern": "(?<=x)y$", "default": "xy"},
}

UNSATISFIABLE: dict[str, Any] = {
    "false": False,
    "nothing is left": {"not": {}},
    "empty enum": {"enum": []},
    "enum of another type": {"enum": ["a"], "type": "integer"},
    "types": {"allOf": [STRING, INTEGER]},
    "range": {"type": "integer", "minimum": 5, "maximum": 4},
    "no integer between": {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    "too few different items": {
        "type": "array",
        "items": {"type": "boolean"},
        "uniqueItems": True,
        "minItems": 3,
    },
    "forbidden and required": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "closed and required": {"type": "object", "required": ["a"], "additionalProperties": False},
    "recursion without end": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
}


def draws(schema: Any, count: int = TIMES) -> list[Any]:
    """`count` values, each known to satisfy `schema`."""
    validator = validators.validator_for(schema, default=Draft202012Validator)(schema)
    values = [sample(schema, Random(seed), RANGES) for seed in range(count)]
    for value in values:
        assert validator.is_valid(value), value
        assert json.loads(json.dumps(value, allow_nan=False)) == value
    return values


@pytest.mark.parametrize("name", SATISFIABLE)
def test_what_is_drawn_satisfies_the_schema(name: str) -> None:
    draws(SATISFIABLE[name])


@pytest.mark.parametrize("name", UNSATISFIABLE)
def test_a_schema_that_nothing_satisfies_is_refused(name: str) -> None:
    with pytest.raises(Unsatisfiable):
        sample(UNSATISFIABLE[name], Random(1), RANGES)


DRAFT = "http://json-schema.org/draft-0{}/schema#"
DRAFTS: dict[str, Any] = {
    "4": {"type": "integer", "minimum": 7, "exclusiveMinimum": True},
    "6": {"type": "array", "items": [STRING], "minItems": 2},
    "7": {"type": "array", "items": [STRING], "additionalItems": INTEGER, "minItems": 3},
    "7: a reference stands alone": {
        "properties": {"a": {"$ref": "#/definitions/a", "type": "integer"}},
        "required": ["a"],
        "definitions": {"a": STRING},
    },
    "2019-09": {"type": "array", "items": [STRING], "additionalItems": False, "minItems": 1},
}


@pytest.mark.parametrize("name", DRAFTS)
def test_the_draft_that_is_named_is_honoured(name: str) -> None:
    newer = "https://json-schema.org/draft/2019-09/schema"
    draws(DRAFTS[name] | {"$schema": newer if len(name) == 7 else DRAFT.format(name[0])})


def test_every_branch_is_taken_at_times() -> None:
    schema = {"anyOf": [{"const": n} for n in range(4)]}
    assert set(draws(schema, 60)) == {0, 1, 2, 3}


def test_the_same_seed_draws_the_same_value() -> None:
    for schema in SATISFIABLE.values():
        assert sample(schema, Random(7), RANGES) == sample(schema, Random(7), RANGES)


def test_properties_keep_the_order_of_the_schema() -> None:
    names = ["zeta", "alpha", "mid"]
    schema = {"type": "object", "properties": dict.fromkeys(names, STRING), "required": sorted(names)}
    assert list(sample(schema, Random(1), RANGES)) == names


def test_words_suit_the_name_of_the_property() -> None:
    schema = {
        "type": "object",
        "properties": {"home_city": STRING, "email": STRING},
        "required": ["home_city", "email"],
    }
    for value in draws(schema):
        assert value["home_city"][0].isupper()
        assert "@" in value["email"]


def test_a_remote_reference_is_not_fetched() -> None:
    with pytest.raises(SchemaError, match=r"properties\.a\.\$ref"):
        sample({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, Random(1), RANGES)


def test_formats_that_are_alternatives_count_as_rules() -> None:
    schema = {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]}
    assert {len(sample(schema, Random(seed), RANGES)) for seed in range(20)} == {10, 20}


def test_a_recursive_value_stays_small() -> None:
    tree = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefghij"}}
    always = Ranges(optional_property=1.0, optional_field=1.0)
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
    "email": lambda text: re.fullmatch(r"[a-z.]+@[a-z.]+", text),
    "hostname": lambda text: re.fullmatch(r"[a-z]+(\.[a-z]+)+", text),
    "duration": lambda text: re.fullmatch(r"P\d+DT\d+H", text),
    "json-pointer": lambda text: text.startswith("/"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_format_is_kept(name: str) -> None:
    for seed in range(40):
        text = sample({"type": "string", "format": name}, Random(seed), Ranges())
        assert CHECKER.conforms(text, name)
        assert READERS.get(name, str)(text)


def test_moments_and_what_the_library_knows_are_told_apart() -> None:
    for name, text in (
        ("date", "2026-02-30"),
        ("date-time", "2026-03-14 09:30:00Z"),
        ("date-time", "2026-02-30T09:30:00Z"),
        ("date-time", "2026-02-03T09:30:00"),
        ("uuid", "9b2f6f0e"),
    ):
        assert not CHECKER.conforms(text, name)
    assert CHECKER.conforms("2026-02-03t09:30:00.25z", "date-time")


def test_a_format_and_a_length_are_kept_together() -> None:
    schema = {"type": "string", "format": "email", "minLength": 20, "maxLength": 26}
    for seed in range(20):
        text = sample(schema, Random(seed), Ranges())
        assert "@" in text
        assert 20 <= len(text) <= 26
