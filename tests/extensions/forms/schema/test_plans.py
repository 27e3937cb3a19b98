"""Plans of objects: the same objects from the same random numbers as without a plan."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extensions.forms.schema.bounds import Size, WorkBudget
from app.extensions.forms.schema.draw import MAX_STEPS, CompiledSchema, Draw
from app.extensions.forms.schema.plans import MAX_DEPTH, MAX_VALUES, object_plan
from app.extensions.forms.schema.reader import Reader
from app.extensions.forms.schema.text_draw import FORMAT_WRITERS
from config.settings import ToolSettings

NAMES = ("city", "unit", "count", "is_open", "id", "x")
PLAIN_VALUES = st.sampled_from(
    [{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]
)
TEXTS = st.lists(st.text(max_size=3), min_size=1, max_size=4, unique=True)
SCALARS = st.one_of(
    PLAIN_VALUES,
    st.fixed_dictionaries({"type": st.just("string"), "enum": TEXTS}),
    st.fixed_dictionaries({"enum": TEXTS, "default": st.just("a")}),
    st.just({"enum": [1, "a", None]}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"]), "minimum": st.integers(-9, 3)},
        optional={"maximum": st.sampled_from([3, 9, 1 << 40]), "default": st.just(4)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("string"), "minLength": st.integers(0, 20)},
        optional={"maxLength": st.integers(20, 30), "default": st.text(max_size=30)},
    ),
    st.sampled_from([{"type": "string", "format": name} for name in FORMAT_WRITERS]),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner},
        optional={"minItems": st.integers(0, 3), "maxItems": st.integers(3, 30)},
    )
    objects = st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3),
        },
        optional={"additionalProperties": st.booleans()},
    )
    return arrays | objects


PROPERTIES = st.recursive(SCALARS, nested, max_leaves=4)
RARE_PARTS = ToolSettings(tool_call_not_required_param_probability=20)


def has_depth(properties: dict[str, Any], depth: int) -> bool:
    """Returns whether an object or a list is in one of `properties`, `depth` levels down."""
    for schema in properties.values():
        inner = dict(schema.get("properties", {}))
        if "items" in schema:
            inner["items"] = schema["items"]
        if inner and (depth == 1 or has_depth(inner, depth - 1)):
            return True
    return False


def document_of(schema: Any) -> Any:
    return Reader(json.dumps(schema).encode(), lenient=False).read_document()


@given(
    properties=st.dictionaries(st.sampled_from(NAMES), PROPERTIES, max_size=5),
    extra=st.sampled_from([None, True, False]),
    usual=st.sampled_from([ToolSettings(), RARE_PARTS]),
    size=st.sampled_from([Size.FRUGAL, Size.USUAL]),
    data=st.data(),
)
def test_plan_of_an_object_draws_the_same_values_as_its_schema(
    properties: dict[str, Any], extra: bool | None, usual: ToolSettings, size: Size, data: Any
) -> None:
    required = data.draw(st.permutations(sorted(properties)))
    required = required[: data.draw(st.integers(0, len(required)))]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if extra is not None:
        schema["additionalProperties"] = extra
    document = document_of(schema)
    plan = object_plan(document.root)
    if plan is None:
        assert extra is True and not properties or has_depth(properties, MAX_DEPTH + 1)
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
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "a"}}},
        {"type": "object", "properties": {"a": {"type": "string", "format": "unknown"}}},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 5000}}},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 2}}},
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}},
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1.5}}},
        {"type": "object", "properties": {"a": {"type": "integer", "maximum": 1 << 60}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "null"}, "uniqueItems": True}},
        },
        {"type": "object", "properties": {"a": {"type": "string", "enum": ["b", 1]}}},
        {"type": "object", "properties": {"a": {"enum": [*range(1001)]}}},
    ],
)
def test_schema_that_is_not_a_simple_object_has_no_plan(schema: Any) -> None:
    assert object_plan(document_of(schema).root) is None


@pytest.mark.parametrize(
    "item",
    [
        {"type": "string", "minLength": 4096},
        {"type": "string", "enum": [str(number) for number in range(700)]},
    ],
    ids=["long texts", "choices of many"],
)
def test_long_work_counts_as_several_values(item: dict[str, Any]) -> None:
    """A planned draw does not pause, and 140 such items take 50 ms."""
    items = {"type": "array", "items": item, "minItems": 20, "maxItems": 20}
    plan = object_plan(document_of({"type": "object", "properties": {"a": items}}).root)
    assert plan is not None
    assert plan.max_values(ToolSettings()) > MAX_VALUES


class Interrupted(CompiledSchema):
    """Another thread, with other settings, draws between two of its steps."""

    other: ToolSettings | None = None

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        other = self.other
        if other is not None and name != "other":
            self.other = None
            self.sample(Random(0), other)


def test_settings_of_another_thread_do_not_change_a_value() -> None:
    lists = {"type": "array", "items": {"type": "array", "items": {"type": "null"}}}
    schema = {"type": "object", "properties": {"rows": lists}, "required": ["rows"]}
    text = json.dumps(schema).encode()
    many = ToolSettings(min_tool_call_array_param_length=40, max_tool_call_array_param_length=40)
    expected = CompiledSchema(text, lenient=False).sample(Random(1), many)
    interrupted = Interrupted(text, lenient=False)
    interrupted.other = ToolSettings()
    assert interrupted.sample(Random(1), many) == expected
