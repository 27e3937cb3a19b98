"""Fields of answers that a release of vLLM has added since the one that the code plays.

The history has their names, not their values. vLLM's optional fields are null until something sets
them, so they are null here. Chunks of streams do not have such fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from app.core.protocol.coercion import JsonObject
from app.core.server.http.route import Route
from app.core.versions.change import Answer
from app.core.versions.shape import schemas_of, types_in
from app.core.versions.structs import structs_in
from vllm_facts.history import required_fields
from vllm_facts.names import read_names
from vllm_facts.version import Version
from vllm_facts.version_order import new_fields

OptionalFields = Mapping[str, Sequence[str]]
"""Names of fields by the name of their class in vLLM."""


@cache
def new_optional_fields(version: Version) -> OptionalFields:
    """Returns the fields of a version that the code lacks and that may be null."""
    optional: dict[str, list[str]] = {}
    names = read_names()
    for schema, new in new_fields(names, version.release).items():
        required = required_fields(names.schemas[schema], version.release)
        optional[schema] = [name for name in new if name not in required]
    return optional


def answers_with_nulls(route: Route, version: Version) -> Iterator[Answer]:
    """Yields what adds new fields to the answers of a route; nothing if they have none."""
    new = new_optional_fields(version)
    kind = route.loaded().docs.answer
    if any(new.get(schema) for struct in structs_in([kind]) for schema in schemas_of(struct)):
        yield Answer(paths=(route.path,), whole=partial(_with_nulls, kind, new))


def _with_nulls(kind: Any, new: OptionalFields, answer: Any, request: JsonObject) -> None:
    """Adds nulls to a decoded answer of a type, as `Answer.whole` does."""
    _add_nulls(_struct_of(kind), answer, new)


def _add_nulls(kind: type[Struct] | None, value: Any, new: OptionalFields) -> None:
    if isinstance(value, list):
        for item in value:
            _add_nulls(kind, item, new)
    elif isinstance(value, dict) and kind is not None:
        for schema in schemas_of(kind):
            for name in new.get(schema, ()):
                value.setdefault(name, None)
        for name, child in _children(kind):
            _add_nulls(child, value.get(name), new)


@cache
def _children(kind: type[Struct]) -> Sequence[tuple[str, type[Struct]]]:
    """Returns the fields of a struct that hold one other struct, or a list of such structs."""
    children: list[tuple[str, type[Struct]]] = []
    for field in fields(kind):
        child = _struct_of(field.type)
        if child is not None:
            children.append((field.encode_name, child))
    return children


def _struct_of(annotation: Any) -> type[Struct] | None:
    """Returns the only struct that an annotation names; None for another number of structs."""
    structs = [kind for kind in types_in(annotation) if issubclass(kind, Struct)]
    return structs[0] if len(structs) == 1 else None
