"""What is no JSON Schema is refused, with the place that is wrong; and what vLLM refuses.

Which schemas vLLM's structured outputs refuse was found with xgrammar 0.2.8 and llguidance 1.9.1.
"""

import gc
import json
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.extensions.forms.schema import SchemaError, Schemas
from app.extensions.forms.schema.keywords import Schema
from app.extensions.forms.schema.reader import Reader
from config.settings import ToolSettings
from tests.extensions.forms.schema.drawing import check_schema, sample

WRONG: list[tuple[Any, str]] = [
    (5, "object"), ({"type": "strnig"}, "type"), ({"type": []}, "type"), ({"type": ["null", "null"]}, "type"),
    ({"properties": {"city": {"type": 5}}}, r"^properties\.city\.type: "), ({"properties": []}, "properties"),
    ({"items": {"minItems": -1}}, r"items\.minItems"), ({"minLength": 1.5}, "minLength"),
    ({"maxItems": True}, "maxItems"), ({"minimum": "1"}, "minimum"), ({"multipleOf": 0}, "multipleOf"),
    ({"required": "a"}, "required"), ({"required": ["a", "a"]}, "required"), ({"enum": "a"}, "enum"),
    ({"uniqueItems": 1}, "uniqueItems"), ({"anyOf": []}, "anyOf"), ({"not": None}, "not"),
    ({"allOf": [{}, {"type": "x"}]}, r"allOf\.1\.type"), ({"pattern": "("}, "pattern"),
    ({"patternProperties": {"[": {}}}, "patternProperties"), ({"$id": 5}, r"\$id"),
    ({"dependentRequired": {"a": "b"}}, "dependentRequired"), ({"$ref": "#/$defs/missing"}, r"\$ref"),
    ({"$ref": "#/properties/a/0", "properties": {"a": {}}}, r"\$ref"), ({"$ref": "#"}, "reference"),
    ({"allOf": [{"$ref": "#"}]}, "reference"), ({"description": 5}, "description"),
    ({"$schema": "http://json-schema.org/draft-03/schema#"}, r"\$schema"),
    ({"minimum": float("nan")}, "minimum"), ({"const": "\ud800"}, "JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "place"), WRONG, ids=str)
def test_error_for_an_invalid_schema_states_the_path(schema: Any, place: str) -> None:
    with pytest.raises(SchemaError, match=place):
        check_schema(schema)


def test_unknown_and_outdated_schema_keywords_are_accepted() -> None:
    check_schema({"type": "object", "nullable": True, "x-order": 5})
    for schema in (
        {"items": [{"type": "null"}]},
        {"maximum": 5, "exclusiveMaximum": True},
        {"minLength": 2.0},
    ):
        check_schema(schema)


def test_lenient_mode_ignores_schema_keywords_with_invalid_values() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "strnig", "minLength": "5"},
            "b": "string",
            "c": {"type": "integer"},
        },
        "required": ["a", "b", "c"],
        "anyOf": [],
        "maxProperties": "many",
    }
    value = sample(schema, Random(1), ToolSettings(), lenient=True)
    assert list(value) == ["a", "b", "c"]
    assert isinstance(value["c"], int)


def test_lenient_mode_ignores_the_schema_below_the_deepest_level() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(100):
        schema = {"allOf": [schema]}
    with pytest.raises(SchemaError, match="nested too deeply"):
        check_schema(schema)
    part: Schema = Reader(json.dumps(schema).encode(), lenient=True).read_document().root
    while isinstance(part, dict):
        [part] = part["allOf"]
    assert part is True


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "array",
            "items": {"$dynamicRef": "#n"},
            "minItems": 2,
            "$defs": {"a": {"$dynamicAnchor": "n", "type": "integer"}},
        },
        {
            "allOf": [{"properties": {"a": {"type": "string"}}}],
            "properties": {"b": {"type": "integer"}},
            "additionalProperties": True,
            "required": ["a"],
        },
        {
            "type": "object",
            "anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}}],
            "required": ["a"],
            "unevaluatedProperties": False,
        },
        {"prefixItems": [{"type": "string"}], "unevaluatedItems": False, "type": "array"},
        {"type": "array", "unevaluatedItems": {"type": "null"}, "minItems": 2},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    ],
)
def test_values_satisfy_keywords_that_depend_on_the_rest_of_the_schema(schema: Any) -> None:
    for seed in range(5):
        value = sample(schema, Random(seed), ToolSettings())
        assert Draft202012Validator(schema).is_valid(value), value


PLAIN = {
    "type": "object",
    "properties": {"a": {"type": "string", "enum": ["x"]}},
    "required": ["a"],
}


def test_schema_is_compiled_once_while_it_stays_in_the_cache() -> None:
    schemas = Schemas(limit_bytes=10_000)
    first = schemas.compile(PLAIN)
    assert schemas.compile(dict(PLAIN)) is first
    assert schemas.compile(PLAIN) is first
    assert schemas.compile(PLAIN, lenient=True) is not first
    schemas.compile({"enum": ["x" * 500]})
    assert schemas.compile(PLAIN) is not first
    schemas = Schemas(limit_bytes=4_000)
    schemas.compile({"const": "x" * 4_000})
    assert schemas.size_bytes == 0, "larger than the limit"


SHAPES: dict[str, Callable[[int], Any]] = {
    "tool": lambda n: {
        "properties": {f"p{n}": {"format": "date"}, "b": {"enum": ["x", n]}},
        "required": ["b"],
    },
    "objects": lambda n: {"enum": [{"a": n, "b": [k]} for k in range(50)]},
    "pattern": lambda n: {"type": "string", "pattern": f"^[a-z]{{0,{n}}}-(red|green)+$"},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_schema_cache_stays_within_its_memory_limit(shape: Callable[[int], Any]) -> None:
    schemas = Schemas(limit_bytes=100_000)
    for n in range(50):  # fills the interpreter's own lists of free objects
        Schemas().compile(shape(n)).sample(Random(n), ToolSettings())
    gc.collect()
    tracemalloc.start()
    try:
        for n in range(120):
            schemas.compile(shape(n)).sample(Random(n), ToolSettings())
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * schemas.limit_bytes < schemas.size_bytes <= schemas.limit_bytes
    # Threads that earlier tests began may allocate some KB meanwhile.
    assert 0.85 * held_bytes < schemas.size_bytes
