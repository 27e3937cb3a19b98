"""Valid schemas that vLLM's structured outputs refuse all the same.

vLLM's first backend, xgrammar, lacks some keywords. A schema with such a keyword goes to the second backend,
llguidance, which refuses the keywords that it lacks. A third backend takes `patternProperties`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.engine.forms.schema.bounds import LISTS_OF_SCHEMAS, MAPS_OF_SCHEMAS, SCHEMAS

Keywords = Mapping[str, object]

MISSED_OF_ARRAYS = frozenset(["uniqueItems", "contains", "minContains", "maxContains"])
COMMON_FORMATS = frozenset(
    ["email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"]
)
"""Formats of texts that both backends support."""
FIRST_FORMATS = COMMON_FORMATS | {"uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}
"""Formats of texts that the first backend supports."""
UNIMPLEMENTED = (
    *("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties"),
    *("propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "if", "then", "else", "not"),
)
"""Keywords that the second backend refuses."""


def untaken(schema: object) -> str | None:
    """Returns the keyword for which vLLM refuses `schema`, which has been compiled; None without one."""
    schemas = list(_schemas(schema))
    if not any(map(_is_missed, schemas)) or any("patternProperties" in each for each in schemas):
        return None
    for each in schemas:
        if "format" in each and each["format"] not in COMMON_FORMATS:
            return "format"
        if (keyword := next(filter(each.__contains__, UNIMPLEMENTED), None)) is not None:
            return keyword
    return None


def _schemas(schema: object) -> Iterator[Keywords]:
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            yield each
            for keyword, value in each.items():
                if keyword in MAPS_OF_SCHEMAS and isinstance(value, dict):
                    waiting += value.values()
                elif keyword in SCHEMAS or keyword in LISTS_OF_SCHEMAS:
                    waiting.append(value)


def _is_missed(schema: Keywords) -> bool:
    kind, all_of = schema.get("type"), schema.get("allOf")
    types = kind if isinstance(kind, list) else (kind,)
    return (
        ("integer" in types or "number" in types)
        and "multipleOf" in schema
        or "array" in types
        and not MISSED_OF_ARRAYS.isdisjoint(schema)
        or "string" in types
        and ("format" in schema and schema["format"] not in FIRST_FORMATS or _is_bounded_pattern(schema))
        or "object" in types
        and _misses_names(schema)
        or isinstance(all_of, list)
        and len(all_of) > 1
    )


def _is_bounded_pattern(schema: Keywords) -> bool:
    return ("pattern" in schema or "format" in schema) and ("minLength" in schema or "maxLength" in schema)


def _misses_names(schema: Keywords) -> bool:
    names, patterns = schema.get("propertyNames"), schema.get("patternProperties")
    if "propertyNames" in schema and (
        isinstance(names, dict)
        and _is_bounded_pattern(names)
        or "patternProperties" in schema
        or "properties" in schema
        or schema.get("unevaluatedProperties", True) is not True
    ):
        return True
    return isinstance(patterns, dict) and ("properties" in schema or len(patterns) > 1)
