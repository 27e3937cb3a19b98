"""Draws random arrays that satisfy a merged schema."""

from collections.abc import Hashable

from app.extensions.forms.schema.bounds import UnsatisfiableError
from app.extensions.forms.schema.keywords import JSON, Schema, canonical_key
from app.extensions.forms.schema.merged_schema import MergedSchema
from app.extensions.forms.schema.value_draw import ValueDraw

MAX_ITEMS = 4096
"""Maximum number of items of a drawn array."""
MAX_EXTRA_ITEMS = 15
"""Maximum items beyond the minimum, where only the schema sets a limit."""
ITEM_ATTEMPTS = 40
"""Draws of one item that must differ from others, or must not match `contains`."""
SCHEMAS_PER_STEP = 8
"""Schemas of one value per step of work, to find the schemas of a part."""


class ArrayDraw:
    """Draws an array called `name`, `depth` levels down."""

    def __init__(self, draw: ValueDraw, merged: MergedSchema, depth: int, name: str) -> None:
        self._draw = draw
        self._merged = merged
        self._depth = depth
        self._item_name = name.removesuffix("s")
        self._min_items = merged.minimum("minItems")
        self._is_unique = any(merged.get("uniqueItems", ()))
        self._containing = [schema for schema in merged.schemas if "contains" in schema]
        self._missing = [int(schema.get("minContains", 1)) for schema in self._containing]
        """Items that each schema of `_containing` still needs."""
        self._items: list[JSON] = []
        self._item_keys: set[Hashable] = set()

    def draw(self) -> list[JSON]:
        """Returns an array, shorter than intended if no further item is found.

        Raises:
            UnsatisfiableError: No valid array was found.
        """
        min_length = max(self._min_items, sum(self._missing))
        for index in range(self._draw_length(min_length)):
            try:
                item = self._find_item(index)
            except UnsatisfiableError:
                if index < self._min_items:
                    raise
                break
            self._append(item)
        if any(count > 0 for count in self._missing):
            raise UnsatisfiableError("an array lacks a required item")
        return self._items

    def _draw_length(self, min_length: int) -> int:
        """Draws the number of items, in the usual range if the schema allows."""
        max_items = self._merged.maximum("maxItems", MAX_ITEMS)
        if min_length > min(max_items, MAX_ITEMS):
            raise UnsatisfiableError("an array would be too long")
        if self._draw.is_small(self._depth):
            return min_length
        usual = self._draw.usual
        merged = self._merged
        low = min_length
        if "minItems" not in merged:
            prefix_lengths = map(len, merged.get("prefixItems", ()))
            low = max(min_length, usual.min_tool_call_array_param_length, *prefix_lengths)
        low = min(low, max_items, MAX_ITEMS)
        if "maxItems" in merged:
            high = min(max_items, low + MAX_EXTRA_ITEMS)
        else:
            high = max(usual.max_tool_call_array_param_length, low)
        return self._draw.rng.randint(low, min(high, MAX_ITEMS))

    def _find_item(self, index: int) -> JSON:
        """Returns an item that all missing ``contains`` accept, if possible, else one, else none.

        Raises:
            UnsatisfiableError: No item was found.
        """
        wanted = []
        for schema, count in zip(self._containing, self._missing, strict=True):
            if count > 0:
                wanted.append(schema["contains"])
        if not wanted:
            excluded = [
                schema["contains"] for schema in self._containing if "maxContains" in schema
            ]
            return self._new_item(index, [], excluded)
        alternatives = [wanted, *([schema] for schema in wanted), []]
        for alternative in alternatives:
            try:
                return self._new_item(index, alternative, [])
            except UnsatisfiableError:
                continue
        raise UnsatisfiableError("could not find an item that satisfies the schema")

    def _new_item(self, index: int, wanted: list[Schema], excluded: list[Schema]) -> JSON:
        """Draws an item that all of `wanted` accept, and none of `excluded`."""
        self._draw.budget.spend(len(self._merged.schemas) // SCHEMAS_PER_STEP)
        schemas = list(wanted)
        for schema in self._merged.schemas:
            prefix = schema.get("prefixItems", ())
            if index < len(prefix):
                schemas.append(prefix[index])
            elif "items" in schema:
                schemas.append(schema["items"])
        if len(schemas) == len(wanted):
            schemas += self._merged.get("unevaluatedItems", ())
        attempts = 1
        if self._is_unique or excluded:
            attempts = ITEM_ATTEMPTS
        for _ in range(attempts):
            item = self._draw.draw_value(schemas, self._depth + 1, self._item_name)
            if any(self._draw.accepts(item, schema) for schema in excluded):
                continue
            if not self._is_unique or canonical_key(item) not in self._item_keys:
                return item
        raise UnsatisfiableError("could not find another unique item")

    def _append(self, item: JSON) -> None:
        self._items.append(item)
        if self._is_unique:
            self._item_keys.add(canonical_key(item))
        for i, schema in enumerate(self._containing):
            if self._missing[i] > 0:
                self._missing[i] -= self._draw.accepts(item, schema["contains"])
