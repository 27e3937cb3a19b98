"""Types as the JSON Schemas of an OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from app.serving.api.openapi.document import REFERENCE, Schema, Schemas

STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}


class Node(Struct, kw_only=True, tag="node", tag_field="kind"):
    """A place
    in a tree.

    More that nobody is told.
    """

    name: str
    weight: float = 0.5
    next: Node | None = None
    size: int | UnsetType = UNSET
    leaves: list[int] = field(default_factory=list)
    is_open: bool = field(default=False, name="open")


class Pair(TypedDict):
    b: int
    a: int


class Triple(Pair, total=False):
    c: str


def of(kind: Any) -> Schema:
    return Schemas({}).of(kind)


ARRAY = {"type": "array", "items": {}}


def test_a_type_is_described_with_its_limits() -> None:
    kinds: list[tuple[Any, Schema]] = [
        *((str, STRING), (int, INTEGER), (float, {"type": "number"}), (bool, {"type": "boolean"})),
        *((None | int, {"anyOf": [NULL, INTEGER]}), (int | UnsetType, INTEGER), (int | Raw, INTEGER)),
        (int | str | Raw | UnsetType, {"anyOf": [INTEGER, STRING]}),
        *((anything, {}) for anything in (Raw | UnsetType, int | object, int | Any, object, Any, Raw)),
        *((bytes, ARRAY), (list, ARRAY), (set[int], {}), (Literal["a", 1], {"enum": ["a", 1]})),
        (list[int], {"type": "array", "items": INTEGER}),
        (Sequence[str], {"type": "array", "items": STRING}),
        (tuple[int, ...], {"type": "array", "items": INTEGER}),
        (tuple[int, str], {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2}),
        (dict, {"type": "object", "additionalProperties": {}}),
        (Mapping[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (Annotated[int, Meta(ge=0, le=9)], {"type": "integer", "minimum": 0, "maximum": 9}),
        (
            Annotated[float, Meta(gt=0, lt=1)],
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        ),
        (Annotated[str, Meta(min_length=1, max_length=2)], {**STRING, "minLength": 1, "maxLength": 2}),
        (Annotated[str, Meta(pattern="^a")], {**STRING, "pattern": "^a"}),
        (Annotated[list[int], Meta(max_length=2)], {"type": "array", "items": INTEGER, "maxItems": 2}),
        (Annotated[Mapping[str, int], Meta(max_length=2)], of(Mapping[str, int])),
        (Annotated[int, "no limit"], INTEGER),
    ]
    for kind, schema in kinds:
        assert of(kind) == schema, kind


def test_a_struct_stands_among_the_components_and_may_hold_itself() -> None:
    schemas = Schemas({(Node, "open"): {"description": "whether it is open"}})
    reference = {"$ref": REFERENCE + "Node"}
    assert schemas.of(list[Node]) == {"type": "array", "items": reference}
    assert schemas.of(Node) == reference
    assert schemas.components == {
        "Node": {
            "type": "object",
            "description": "A place in a tree.",
            "required": ["kind", "name"],
            "properties": {
                "kind": {"const": "node"},
                "name": STRING,
                "weight": {"type": "number", "default": 0.5},
                "next": {"anyOf": [reference, NULL]},
                "size": INTEGER,
                "leaves": {"type": "array", "items": INTEGER},
                "open": {"type": "boolean", "default": False, "description": "whether it is open"},
            },
        }
    }


def test_a_dictionary_says_which_keys_are_required_and_a_second_name_has_its_module() -> None:
    schemas = Schemas({})
    assert schemas.of(Triple) == {"$ref": REFERENCE + "Triple"}
    assert schemas.components["Triple"] == {
        "type": "object",
        "required": ["a", "b"],
        "properties": {"b": INTEGER, "a": INTEGER, "c": STRING},
    }
    assert schemas.of(Node) == {"$ref": REFERENCE + "Node"}
    other = type("Node", (Struct,), {"__module__": "some.module", "__doc__": None})
    assert schemas.of(other) == schemas.of(other) == {"$ref": REFERENCE + "module.Node"}
    assert schemas.components["module.Node"] == {"type": "object", "properties": {}}
