"""Draws arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from random import Random
from typing import Any

from app.schema.demands import Demands
from app.schema.document import Schema
from app.schema.equality import identity
from app.schema.errors import Contradiction

MOST_ITEMS = 4096
"""Items of the longest array that is drawn."""
SPREAD = 15
"""Items at most beyond the fewest, where only the schema sets a limit."""
UNIQUE_TRIES = 40

Item = Callable[[Sequence[Schema]], Any]
"""Draws an item that all the given schemas accept; raises Contradiction."""
Accepts = Callable[[Schema, Any], bool]
"""Tells whether a value satisfies a schema."""


def draw_length(demands: Demands, usual: tuple[int, int], rng: Random, small: bool) -> int:
    """How many items to draw, of the `usual` range where the schema does not say (simulator.md 7.4).

    With `small` as few as it allows. Raises Contradiction when that is still too many.
    """
    counts = demands.counts
    needed = sum(_count(schema, "minContains", 1) for schema in _containing(demands))
    fewest = max(counts.get("minItems", 0), min(needed, MOST_ITEMS + 1))
    if fewest > MOST_ITEMS:
        raise Contradiction
    if small:
        return fewest
    low = fewest
    if "minItems" not in counts:
        low = max(fewest, usual[0], *(len(prefix) for prefix in demands.values("prefixItems")))
    low = min(low, counts.get("maxItems", low), MOST_ITEMS)
    high = min(counts["maxItems"], low + SPREAD) if "maxItems" in counts else max(usual[1], low)
    return rng.randint(low, min(high, MOST_ITEMS))


def item_schemas(demands: Demands, index: int) -> list[Schema]:
    """What all schemas say of the item at `index`."""
    said: list[Schema] = []
    for schema in demands.plain:
        prefix = schema.get("prefixItems", ())
        if index < len(prefix):
            said.append(prefix[index])
        elif "items" in schema:
            said.append(schema["items"])
    return said or list(demands.values("unevaluatedItems"))


def draw_array(demands: Demands, length: int, item: Item, accepts: Accepts) -> list[Any]:
    """About `length` items: fewer when no more can be had and the schema allows it. Raises Contradiction."""
    fewest = demands.counts.get("minItems", 0)
    wanted = [[schema["contains"], _count(schema, "minContains", 1)] for schema in _containing(demands)]
    unwanted = [schema["contains"] for schema in _containing(demands) if "maxContains" in schema]
    items: list[Any] = []
    seen: set[Hashable] = set()
    for index in range(length):
        schemas = item_schemas(demands, index)
        due = [pair for pair in wanted if pair[1] > 0]
        extra = [pair[0] for pair in due] or [{"not": schema} for schema in unwanted]
        try:
            drawn = _one(schemas, extra, item, seen if demands.unique else None)
        except Contradiction:
            if index >= fewest:
                break
            raise
        items.append(drawn)
        for pair in due:
            pair[1] -= accepts(pair[0], drawn)
    if any(missing > 0 for _, missing in wanted):
        raise Contradiction
    return items


def _one(schemas: list[Schema], extra: list[Schema], item: Item, seen: set[Hashable] | None) -> Any:
    """An item that has the `extra` if possible, one of them if not, and is not among those `seen`."""
    attempts = [[*schemas, *extra], *([*schemas, each] for each in extra if len(extra) > 1)]
    for wanted in [*attempts, schemas] if extra else [schemas]:
        try:
            return _unseen(wanted, item, seen)
        except Contradiction:
            continue
    raise Contradiction


def _unseen(schemas: list[Schema], item: Item, seen: set[Hashable] | None) -> Any:
    if seen is None:
        return item(schemas)
    for _ in range(UNIQUE_TRIES):
        drawn = item(schemas)
        key = identity(drawn)
        if key not in seen:
            seen.add(key)
            return drawn
    raise Contradiction


def _containing(demands: Demands) -> list[Any]:
    return [schema for schema in demands.plain if "contains" in schema]


def _count(schema: Any, keyword: str, usual: int) -> int:
    return int(schema.get(keyword, usual))
