"""A read JSON Schema with the definitions of its references, and how deep its values are."""

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from math import inf
from typing import NamedTuple

from app.extensions.forms.schema.bounds import SchemaError
from app.extensions.forms.schema.keywords import Choice, Keywords, Schema
from app.extensions.forms.schema.merged_schema import MergedSchema

PLAIN_KEYWORDS = frozenset(
    [
        "$ref",
        "additionalProperties",
        "allOf",
        "anyOf",
        "default",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maximum",
        "maxItems",
        "maxLength",
        "minimum",
        "minItems",
        "minLength",
        "multipleOf",
        "properties",
        "required",
        "type",
        "uniqueItems",
    ]
)
"""Keywords that a draw always satisfies, without a check of the whole value."""
MAX_PLAIN_SCHEMAS = 64
"""Maximum schemas of a plain document: a check of its values costs a part of a draw's budget."""
MAX_PLAIN_LENGTH = 4_000
"""Maximum length of the JSON of a plain document."""
MAX_ROUNDS = 40
"""Maximum passes to find minimal depths; depths unknown after them count as infinite."""


class Flattened(NamedTuple):
    """The schemas that one schema includes."""

    merged: MergedSchema
    """The constraints outside of branches."""
    choices: Sequence[Choice]
    is_possible: bool
    """False if no value satisfies the schema."""
    steps: int
    """Steps of work that finding the schemas takes."""


class Document:
    """A schema and the definitions of its references.

    `schemas` are all schemas in the document, outer ones first; `pattern_bytes` is the memory of
    its compiled patterns, `length` that of its JSON.

    Raises:
        SchemaError: A reference leads back to itself.
    """

    def __init__(
        self,
        root: Schema,
        definitions: dict[str, Schema],
        schemas: Sequence[Keywords],
        pattern_bytes: int,
        length: int,
    ) -> None:
        self.root = root
        self.definitions = definitions
        self.pattern_bytes = pattern_bytes
        self.is_plain = (
            length <= MAX_PLAIN_LENGTH
            and len(schemas) <= MAX_PLAIN_SCHEMAS
            and all(schema.keys() <= PLAIN_KEYWORDS for schema in schemas)
        )
        """True if every value that is drawn with ``format`` as a rule is valid."""
        self.flattened: dict[int, Flattened] = {}
        """The schemas that each schema of the document includes, by its `id`."""
        if definitions:
            self._check_cycles(schemas)
        self._min_depths: dict[int, float] = {id(schema): inf for schema in schemas}
        self._solve_min_depths(schemas)
        self.endless = frozenset(key for key, depth in self._min_depths.items() if depth == inf)
        """The `id` of each schema without a finite value."""

    def has(self, schema: Schema) -> bool:
        """Returns True for a schema of the document, which lives as long as the document."""
        return id(schema) in self._min_depths

    def min_depth(self, *schemas: Schema) -> float:
        """Returns a lower bound of the levels of a value that `schemas` accept.

        The bound is infinite if they accept no finite value.
        """
        max_depth: float = 0
        for schema in schemas:
            if schema is False:
                return inf
            max_depth = max(max_depth, self._min_depths.get(id(schema), 0))
        return max_depth

    def _check_cycles(self, schemas: Sequence[Keywords]) -> None:
        graph = {id(schema): list(map(id, self._in_place(schema))) for schema in schemas}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError:
            raise SchemaError("a reference refers to itself") from None

    def _solve_min_depths(self, schemas: Sequence[Keywords]) -> None:
        for _ in range(MAX_ROUNDS):
            schemas = schemas[::-1]  # inner schemas first
            previous = list(self._min_depths.values())
            for schema in schemas:
                self._min_depths[id(schema)] = self._depth_of(schema)
            if previous == list(self._min_depths.values()):
                break

    def _depth_of(self, schema: Keywords) -> float:
        if "const" in schema or "enum" in schema:
            return 0
        types = schema.get("type", ["null"])
        nested_depths: list[float] = []
        if "object" in types:
            nested_depths.append(self._object_depth(schema))
        if "array" in types:
            nested_depths.append(self._array_depth(schema))
        depth = self.min_depth(*schema.get("allOf", ()), *self._referenced(schema))
        if len(nested_depths) == len(types):
            depth = max(depth, min(nested_depths))
        for options in (schema.get("anyOf"), schema.get("oneOf")):
            if options is not None:
                depth = max(depth, min(map(self.min_depth, options)))
        return depth

    def _object_depth(self, schema: Keywords) -> float:
        properties = schema.get("properties", {})
        required = [properties.get(name, True) for name in schema.get("required", ())]
        return 1 + self.min_depth(*required)

    def _array_depth(self, schema: Keywords) -> float:
        min_items = int(schema.get("minItems", 0))
        prefix = schema.get("prefixItems", [])
        items = prefix[:min_items]
        if min_items > len(prefix):
            items.append(schema.get("items", True))
        return 1 + self.min_depth(*items)

    def _in_place(self, schema: Keywords) -> list[Schema]:
        """Returns the schemas that `schema` applies to the same value."""
        conditions = [
            schema[keyword] for keyword in ("not", "if", "then", "else") if keyword in schema
        ]
        lists = (schema.get("allOf", ()), schema.get("anyOf", ()), schema.get("oneOf", ()))
        dependent = schema.get("dependentSchemas", {}).values()
        return [*conditions, *chain(*lists), *dependent, *self._referenced(schema)]

    def _referenced(self, schema: Keywords) -> list[Schema]:
        if "$ref" in schema:
            return [self.definitions[schema["$ref"]]]
        return []
