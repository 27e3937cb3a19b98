"""Plans of objects: the same objects from the same random numbers as without a plan."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extensions.forms.schema.bounds import Size, WorkBudget
from app.extensions.forms.schema.draw import MAX_STEPS, CompiledSchema, Draw
from app.extensions.forms.schema.flat_object import flat_object
from app.extensions.forms.schema.reader import Reader
from config.settings import ToolSettings

NAMES = ("city", "unit", "count", "is_open", "id", "x")
PLAIN_VALUES = st.sampled_from(
    [{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]
)
TEXTS = st.lists(st.text(max_size=3), min_size=1, max_size=4, unique=True)
PROPERTIES = st.one_of(
    PLAIN_VALUES,
    st.fixed_dictionaries({"type": st.just("string"), "enum": TEXTS}),
    st.just({"enum": [1, "a", None]}),
)
RARE_PARTS = ToolSettings(tool_call_not_required_param_probability=20)


def document_of(schema: Any) -> Any:
    return Reader(json.dumps(schema).encode(), lenient=False).read_document()


@given(
    properties=st.dictionaries(st.sampled_from(NAMES), PROPERTIES, max_size=5),
    extra=st.sampled_from([None, True, False]),
    usual=st.sampled_from([ToolSettings(), RARE_PARTS]),
    size=st.sampled_from([Size.FRUGAL, Size.USUAL]),
    data=st.data(),
)
def test_plan_of_a_flat_object_generates_the_same_values_as_its_schema(
    properties: dict[str, Any], extra: bool | None, usual: ToolSettings, size: Size, data: Any
) -> None:
    required = data.draw(st.permutations(sorted(properties)))
    required = required[: data.draw(st.integers(0, len(required)))]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if extra is not None:
        schema["additionalProperties"] = extra
    document = document_of(schema)
    plan = flat_object(document.root)
    assert (plan is None) == (extra is True and not properties)
    rng = Random(data.draw(st.integers(0, 99)))
    other_rng = Random()
    other_rng.setstate(rng.getstate())
    draw = Draw(document, usual, rng, WorkBudget(MAX_STEPS), formats=True, size=size)
    value = draw.draw_value([document.root])
    planned = CompiledSchema(json.dumps(schema).encode(), False).sample(other_rng, usual, size)
    assert json.dumps(planned) == json.dumps(value)
    assert other_rng.getstate() == rng.getstate()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["object", "null"]},
        {"properties": {"a": {"type": "string"}}},
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "string", "enum": ["b", 1]}}},
        {"type": "object", "properties": {"a": {"enum": [*range(1001)]}}},
    ],
)
def test_schema_that_is_not_a_simple_flat_object_has_no_generation_plan(schema: Any) -> None:
    assert flat_object(document_of(schema).root) is None
