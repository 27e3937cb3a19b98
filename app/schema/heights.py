"""How deep the shallowest value of each schema is: what lets recursive schemas come to an end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from app.schema.document import Document, Schema

ROUNDS = 40
"""Looks at all schemas, forwards and backwards; heights unknown after so many count as endless."""


class Heights:
    """Levels of nesting that a value of a schema has at least; infinite when it could not end.

    A lower bound: keywords of several schemas are not held against each other.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[int, float] = {id(schema): inf for schema in document.schemas}
        order = document.schemas
        for _ in range(ROUNDS):
            order = order[::-1]
            if not self._look_at(order):
                break

    def of(self, schema: Schema) -> float:
        """The height of `schema`; 0 for one that is not of the document."""
        if isinstance(schema, bool):
            return 0 if schema else inf
        return self._known.get(id(schema), 0)

    def greatest(self, schemas: Iterable[Schema]) -> float:
        """The height that a value of all `schemas` has at least."""
        return max(map(self.of, schemas), default=0)

    def _look_at(self, schemas: Iterable[Mapping[str, Any]]) -> bool:
        """Find the heights of `schemas` from those known; True when one has changed."""
        changed = False
        for schema in schemas:
            height = self._height(schema)
            if height != self._known[id(schema)]:
                self._known[id(schema)] = height
                changed = True
        return changed

    def _height(self, schema: Mapping[str, Any]) -> float:
        if "const" in schema or "enum" in schema:
            return 0
        height = self.greatest(schema.get("allOf", ()))
        if "$ref" in schema:
            height = max(height, self.of(self._document.target(schema["$ref"])))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                height = max(height, min(map(self.of, schema[keyword])))
        return max(height, self._nesting(schema))

    def _nesting(self, schema: Mapping[str, Any]) -> float:
        types = schema.get("type", ["null"])
        if not set(types) <= {"object", "array"}:
            return 0
        ways = []
        if "object" in types:
            properties = schema.get("properties", {})
            required = [properties.get(name, True) for name in schema.get("required", ())]
            ways.append(1 + self.greatest(required))
        if "array" in types:
            fewest, prefix = int(schema.get("minItems", 0)), schema.get("prefixItems", [])
            needed = prefix[:fewest] + ([schema.get("items", True)] if fewest > len(prefix) else [])
            ways.append(1 + self.greatest(needed))
        return min(ways)
