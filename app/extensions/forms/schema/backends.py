"""Finds the schema keywords that vLLM's structured output backends reject.

vLLM tries xgrammar first. A schema with keywords that xgrammar lacks goes to llguidance, which
rejects the keywords that it lacks itself. A third backend takes `patternProperties`.
"""

from collections.abc import Iterator, Mapping

from app.extensions.forms.schema.bounds import (
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_MAP_KEYWORDS,
)

RawSchema = Mapping[str, object]

XGRAMMAR_MISSING_ARRAY_KEYWORDS = frozenset(
    ["uniqueItems", "contains", "minContains", "maxContains"]
)
COMMON_FORMATS = frozenset(
    ["email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"]
)
"""Text formats that both backends support."""
XGRAMMAR_FORMATS = COMMON_FORMATS | {
    "uri-reference",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
}
LLGUIDANCE_MISSING_KEYWORDS = (
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "unevaluatedProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "if",
    "then",
    "else",
    "not",
)


def find_unsupported_keyword(schema: object) -> str | None:
    """Returns the keyword for which vLLM rejects `schema`, or None if vLLM accepts it.

    `schema` has been compiled, so it is known to be valid.
    """
    schemas = list(_all_schemas(schema))
    if not any(map(_needs_llguidance, schemas)):
        return None
    if any("patternProperties" in subschema for subschema in schemas):
        return None
    for subschema in schemas:
        if "format" in subschema and subschema["format"] not in COMMON_FORMATS:
            return "format"
        for keyword in LLGUIDANCE_MISSING_KEYWORDS:
            if keyword in subschema:
                return keyword
    return None


def _all_schemas(schema: object) -> Iterator[RawSchema]:
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        elif isinstance(part, dict):
            yield part
            for keyword, value in part.items():
                if keyword in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
                    stack += value.values()
                elif keyword in SCHEMA_KEYWORDS or keyword in SCHEMA_LIST_KEYWORDS:
                    stack.append(value)


def _needs_llguidance(schema: RawSchema) -> bool:
    """Returns True if xgrammar lacks a keyword of `schema` itself."""
    kind = schema.get("type")
    types = [kind]
    if isinstance(kind, list):
        types = kind
    if ("integer" in types or "number" in types) and "multipleOf" in schema:
        return True
    if "array" in types and not XGRAMMAR_MISSING_ARRAY_KEYWORDS.isdisjoint(schema):
        return True
    if "string" in types:
        has_rare_format = "format" in schema and schema["format"] not in XGRAMMAR_FORMATS
        if has_rare_format or _is_bounded_pattern(schema):
            return True
    if "object" in types and _has_complex_names(schema):
        return True
    all_of = schema.get("allOf")
    return isinstance(all_of, list) and len(all_of) > 1


def _is_bounded_pattern(schema: RawSchema) -> bool:
    return ("pattern" in schema or "format" in schema) and (
        "minLength" in schema or "maxLength" in schema
    )


def _has_complex_names(schema: RawSchema) -> bool:
    if "propertyNames" in schema:
        names = schema["propertyNames"]
        if (
            (isinstance(names, dict) and _is_bounded_pattern(names))
            or "patternProperties" in schema
            or "properties" in schema
            or schema.get("unevaluatedProperties", True) is not True
        ):
            return True
    patterns = schema.get("patternProperties")
    return isinstance(patterns, dict) and ("properties" in schema or len(patterns) > 1)
