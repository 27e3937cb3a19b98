"""Whatever the schema, what is drawn satisfies it, or a SchemaError says why there is nothing."""

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema import SchemaError as WrongSchema

from app.extensions.forms.schema import SchemaError, Schemas
from config.settings import ToolSettings
from tests.extensions.forms.schema.drawing import check_schema, sample
from tests.extensions.forms.schema.test_keywords import tool_parameters

SMALL = st.integers(-3, 6)
NAMES = st.sampled_from(["a", "b", "c", "dd"])
VALUES = st.recursive(
    st.none() | st.booleans() | SMALL | st.sampled_from([0.5, 2.0, "", "a", "bb", "cc1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=4,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
COUNTS = st.integers(0, 4)
COUNTED = ("Properties", "Contains", "Items", "Length")
PATTERNS = st.sampled_from(["^a", "b$", "^[a-c]+$", r"\d", "^.{2,3}$", "^(a|b)*$"])


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of a few keywords that need not go together."""
    schemas = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(VALUES, max_size=4),
            "const": VALUES,
            "uniqueItems": st.booleans(),
            "$defs": named,
            "required": st.lists(NAMES, max_size=2, unique=True),
            "prefixItems": schemas,
            "dependentRequired": st.dictionaries(
                NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2
            ),
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "pattern": PATTERNS,
            "properties": named,
            "dependentSchemas": named,
            "anyOf": schemas,
            "oneOf": schemas,
            "allOf": schemas,
            **dict.fromkeys(("additionalProperties", "propertyNames", "items", "contains"), inner),
            **dict.fromkeys(("not", "if", "then", "else"), inner),
            **dict.fromkeys(
                (f"{end}{counted}" for end in ("min", "max") for counted in COUNTED), COUNTS
            ),
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), SMALL),
            "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.1]),
            "format": st.sampled_from(["date", "email", "uuid", "int32"]),
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/items"]),
        },  # fmt: skip
    ).flatmap(_fewer)


def _fewer(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    if len(schema) <= 3:
        return st.just(schema)
    kept_names = st.lists(st.sampled_from(sorted(schema)), min_size=1, max_size=4, unique=True)
    return kept_names.map(lambda names: {name: schema[name] for name in names})


SCHEMAS = st.recursive(st.booleans() | keywords(st.booleans()), keywords, max_leaves=5)


@given(schema=SCHEMAS, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_value_generated_for_any_accepted_schema_satisfies_the_schema(
    schema: Any, seed: int
) -> None:
    try:
        value = sample(schema, Random(seed), ToolSettings())
    except SchemaError:
        return
    asserting = Draft202012Validator(schema, format_checker=FormatChecker())
    assert Draft202012Validator(schema).is_valid(value) or asserting.is_valid(value)


@given(schema=st.recursive(VALUES, keywords, max_leaves=5))
@settings(max_examples=40, deadline=None)
def test_schema_that_jsonschema_rejects_is_rejected(schema: Any) -> None:
    """The other way round does not hold: some references and patterns are refused here alone."""
    try:
        check_schema(schema)
    except SchemaError:
        return
    try:
        Draft202012Validator.check_schema(schema)
    except WrongSchema as error:
        assert {"items", "exclusiveMinimum", "exclusiveMaximum"} & set(
            map(str, error.absolute_path)
        )


def test_arguments_of_tools_with_many_parameters_satisfy_their_schema() -> None:
    for seed in range(60):
        rng = Random(seed)
        schema = tool_parameters(rng)
        arguments = sample(schema, rng, ToolSettings())
        assert Draft202012Validator(schema).is_valid(arguments), (seed, schema, arguments)


def plain_objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of the keywords that a draw satisfies without a check."""
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=4),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(2, 5),
            "uniqueItems": st.booleans(),
            "minimum": st.integers(-3, 3),
            "maximum": st.floats(2, 9),
            "exclusiveMinimum": st.integers(-3, 3),
            "exclusiveMaximum": st.integers(3, 9),
            "multipleOf": st.sampled_from([1, 2, 0.5]),
            "minLength": st.integers(0, 12),
            "maxLength": st.integers(10, 40),
            "format": st.sampled_from(["date", "date-time", "email", "ipv4", "uuid", "other"]),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "default": VALUES,
        },
    )


@settings(max_examples=20, deadline=None)
@given(st.recursive(plain_objects(st.booleans()), plain_objects, max_leaves=6), st.randoms())
def test_values_generated_without_a_final_check_satisfy_simple_schemas(
    schema: dict[str, Any], rng: Random
) -> None:
    compiled = Schemas().compile(schema)
    assert compiled._document.is_plain
    for _ in range(4):
        try:
            value = compiled.sample(rng, ToolSettings())
        except SchemaError:
            continue
        assert compiled.accepts(value)
        assert Draft202012Validator(schema).is_valid(value)
