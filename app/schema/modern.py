"""Older drafts' spellings, told in Draft 2020-12."""

from __future__ import annotations

from typing import Any

from app.schema.equality import Options
from app.schema.keywords import is_number


def modernised(schema: dict[str, Any], reference_alone: bool) -> None:
    """Change `schema` in place.

    `reference_alone`: keywords beside ``$ref`` say nothing, as up to Draft 7.
    """
    if reference_alone and "$ref" in schema:
        reference = schema["$ref"]
        schema.clear()
        schema["$ref"] = reference
    if reference_alone:
        schema.pop("minContains", None)
        schema.pop("maxContains", None)
    _items(schema)
    _limits(schema)
    _dependencies(schema)
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"]]
    if "enum" in schema:
        schema["enum"] = Options(schema["enum"])


def _items(schema: dict[str, Any]) -> None:
    """A list under ``items`` is ``prefixItems``, and ``additionalItems`` what follows it."""
    more = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if more is not None:
            schema["items"] = more


def _limits(schema: dict[str, Any]) -> None:
    """True under ``exclusiveMinimum`` makes the ``minimum`` exclusive."""
    for exclusive, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        old = exclusive in schema and not is_number(schema[exclusive])
        if old and schema.pop(exclusive) and limit in schema:
            schema[exclusive] = schema.pop(limit)


def _dependencies(schema: dict[str, Any]) -> None:
    """``dependencies`` holds both names and schemas."""
    for name, needed in schema.pop("dependencies", {}).items():
        keyword = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
        schema[keyword] = {**schema.get(keyword, {}), name: needed}
