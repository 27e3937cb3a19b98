"""Schemas that ask for too much end soon, with a value or a SchemaError, and never with anything else."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from app.schema import Ranges, SchemaError, sample

MANY = 10**9


def nested(levels: int, keyword: str) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {keyword: {"a": schema}, "required": ["a"]} if keyword == "properties" else {keyword: schema}
    return schema


def doubled(levels: int, keyword: str) -> Any:
    """References that unfold to 2 ** `levels` schemas."""
    schemas = {f"s{n}": {keyword: [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/s0", "$defs": {**schemas, f"s{levels}": {"type": "string"}}}


def required_twice(levels: int) -> Any:
    """References that unfold to 2 ** `levels` values."""
    schemas: dict[str, Any] = {}
    for n in range(levels):
        part = {"$ref": f"#/$defs/s{n + 1}"}
        schemas[f"s{n}"] = {"type": "object", "properties": {"x": part, "y": part}, "required": ["x", "y"]}
    return {"$ref": "#/$defs/s0", "$defs": {**schemas, f"s{levels}": {"type": "string"}}}


def pigeons(count: int) -> Any:
    """`count` properties with different values out of one fewer."""
    names = [f"p{n}" for n in range(count)]
    same = [
        {"not": {"properties": {a: {"const": v}, b: {"const": v}}, "required": [a, b]}}
        for v in range(count - 1)
        for n, a in enumerate(names)
        for b in names[:n]
    ]
    values = {"enum": list(range(count - 1))}
    return {"type": "object", "properties": dict.fromkeys(names, values), "required": names, "allOf": same}


def deep_list(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


HOSTILE: dict[str, Any] = {
    "deep objects": nested(300, "properties"),
    "deep not": nested(400, "not"),
    "deep items": nested(70, "items"),
    "deep const": {"const": deep_list(400)},
    "very deep const": {"const": deep_list(900)},
    "allOf doubled": doubled(40, "allOf"),
    "anyOf doubled": doubled(40, "anyOf"),
    "oneOf doubled": doubled(40, "oneOf"),
    "unevaluated and doubled": {"unevaluatedProperties": False, **doubled(40, "anyOf")},
    "values doubled": required_twice(40),
    "long chain of references": {
        "$ref": "#/$defs/s0",
        "$defs": {f"s{n}": {"$ref": f"#/$defs/s{n + 1}"} for n in range(900)} | {"s900": {}},
    },
    "minItems": {"type": "array", "minItems": MANY},
    "minItems as a float": {"type": "array", "minItems": 1e300},
    "minContains": {"type": "array", "contains": {}, "minContains": MANY},
    "minLength": {"type": "string", "minLength": MANY},
    "minProperties": {"type": "object", "minProperties": MANY},
    "many unique items": {
        "type": "array",
        "items": {"type": "integer"},
        "uniqueItems": True,
        "minItems": 4000,
    },
    "many objects": {"type": "array", "items": required_twice(0) | {"$ref": "#/$defs/s0"}, "minItems": 4000},
    "nested arrays": {
        "type": "array",
        "minItems": 50,
        "items": {"type": "array", "minItems": 50, "items": {"type": "array", "minItems": 50}},
    },
    "backtracking on a const": {"const": "a" * 40 + "!", "pattern": "^(a|a|a)*$"},
    "backtracking on a name": {
        "type": "object",
        "properties": {"a" * 50 + "!": {}},
        "required": ["a" * 50 + "!"],
        "patternProperties": {"^(a|a|a)*$": {}},
    },
    "backtracking beside unevaluatedProperties": {
        "properties": {"a" * 50 + "!": {}},
        "required": ["a" * 50 + "!"],
        "patternProperties": {"^(a|a|a)*$": {}},
        "unevaluatedProperties": False,
    },
    "backtracking on every option": {
        "enum": ["a" * 3000 + str(n) for n in range(100)],
        "pattern": "(.*)(.*)(.*)x$",
    },
    "nested quantifiers": {"type": "string", "pattern": "(a+)+$", "minLength": 30},
    "many patterns": {"patternProperties": {f"^{n}.*a.*b": {} for n in range(2000)}, "minProperties": 20},
    "giant multipleOf": {"type": "integer", "multipleOf": 10**4000, "minimum": 1},
    "tiny multipleOf": {"type": "number", "multipleOf": 5e-324, "minimum": 1e300},
    "many multipleOf": {"allOf": [{"multipleOf": 10**15 + n} for n in range(1500)], "minimum": 1},
    "giant minimum": {"type": "number", "minimum": 10**4000},
    "too large for text": {"type": "number", "minimum": 10**5000},
    "no room between": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 5e-324},
    "many anyOf": {"anyOf": [{"type": "integer", "minimum": n + 1, "maximum": n} for n in range(3000)]},
    "many overlapping oneOf": {"oneOf": [{"type": "integer", "minimum": n} for n in range(500)]},
    "long text in many branches": {
        "const": ["x" * 200_000],
        "anyOf": [{"type": "integer", "minimum": n} for n in range(2000)],
    },
    "large enum": {"enum": list(range(60_000)), "type": "string"},
    "many required": {"type": "object", "required": [f"p{n}" for n in range(20_000)]},
    "many properties": {"type": "object", "properties": {f"p{n}": {} for n in range(20_000)}},
    "chain of dependencies": {
        "required": ["p0"],
        "dependentRequired": {f"p{n}": [f"p{n + 1}"] for n in range(3000)},
    },
    "chain of dependent schemas": {
        "dependentSchemas": {f"p{n}": {"required": [f"p{n + 1}"]} for n in range(300)}
    },
    "pigeons": pigeons(8),
    "large": {"description": "x" * 2_000_000},
    "names that no file has": {"$id": "http://[::1", "properties": {"a": {"$ref": "b"}}},
    "half a character": {"type": "string", "pattern": "\\ud800"},
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_ends_soon(name: str) -> None:
    try:
        json.dumps(sample(HOSTILE[name], Random(1), Ranges()))
    except SchemaError as error:
        assert len(str(error)) < 1000


def test_a_recursive_value_stays_small() -> None:
    tree = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefghij"}}
    always = Ranges(optional_property=1.0, optional_field=1.0)
    for seed in range(10):
        assert len(json.dumps(sample(tree, Random(seed), always))) < 20_000
