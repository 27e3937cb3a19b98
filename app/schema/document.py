"""A schema made ready to draw from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from app.schema.errors import SchemaError
from app.schema.keywords import BACKWARDS, IN_PLACE

Schema = Mapping[str, Any] | bool


class Document:
    """A schema of Draft 2020-12 that refers only to its own ``$defs``, `definitions`.

    Its patterns are `Pattern`s, its enums `Options`, types are lists, and keywords without a say are
    left out. `schemas` lists every schema in it. Raises SchemaError for one that cannot be judged.
    """

    def __init__(self, root: Schema, definitions: dict[str, Schema], schemas: list[dict[str, Any]]) -> None:
        if isinstance(root, dict) and definitions:
            root["$defs"] = definitions
        self.root = root
        self.definitions = definitions
        self.schemas = schemas
        keywords: set[str] = set().union(*schemas)
        self.reads_formats_backwards = "format" in keywords and not keywords.isdisjoint(BACKWARDS)
        """True when a value may satisfy the schema only because it lacks a ``format``."""
        if "unevaluatedProperties" in keywords:
            self._refuse_costly()
        if definitions:
            self._refuse_endless()

    def target(self, reference: str) -> Schema:
        """The schema that a ``$ref`` of this document names."""
        return self.definitions[reference.rpartition("/")[2]]

    def in_place(self, schema: Mapping[str, Any]) -> Iterator[Schema]:
        """The schemas that `schema` applies to the very value it speaks of."""
        for keyword in IN_PLACE:
            value = schema.get(keyword)
            if isinstance(value, list):
                yield from value
            elif keyword == "dependentSchemas" and value:
                yield from value.values()
            elif value is not None:
                yield value
        if "$ref" in schema:
            yield self.target(schema["$ref"])

    def _refuse_endless(self) -> None:
        """Raise SchemaError if a schema is applied to its own value again and again."""
        graph = {id(schema): map(id, self.in_place(schema)) for schema in self.schemas}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError:
            raise SchemaError("a reference leads back to itself without going into the value") from None

    def _refuse_costly(self) -> None:
        """Raise SchemaError where `jsonschema` itself would search, without our limit of time."""
        for schema in self.schemas:
            for pattern in schema.get("patternProperties", ()):
                if pattern.risky:
                    raise SchemaError(
                        f"the pattern {pattern.source!r} is too costly beside unevaluatedProperties"
                    )
