"""A schema as xgrammar reads it, for replies to a schema that no value satisfies.

xgrammar follows the first keyword that it finds, and ignores the others. So a model replies to
``{"type": "string", "enum": [1]}`` with 1, and to ``{"not": {}}`` with anything.
"""

from app.extensions.forms.schema.keywords import JSON

VALUE_KEYWORDS = ("$ref", "const", "enum")
"""Keywords beside which all others are ignored, first ones first."""
LIST_KEYWORDS = ("anyOf", "oneOf")
"""Choices beside which all others are ignored."""
IGNORED_KEYWORDS = frozenset(
    [
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("dependentRequired", "dependentSchemas", "dependencies", "multipleOf"),
        *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
    ]
)
SCHEMA_KEYWORDS = frozenset(["items", "additionalProperties", "propertyNames", "additionalItems"])
MAP_KEYWORDS = frozenset(["properties", "patternProperties", "$defs", "definitions"])


def loosened(schema: JSON) -> JSON:
    """Returns what xgrammar reads in `schema`, as a schema."""
    if not isinstance(schema, dict):
        return schema
    read = _only_keyword(schema)
    if read is None:
        read = {
            keyword: _loosened_value(keyword, value)
            for keyword, value in schema.items()
            if keyword not in IGNORED_KEYWORDS
        }
    for keyword in ("$defs", "definitions"):
        if keyword in schema:
            read[keyword] = _loosened_map(schema[keyword])
    return read


def _only_keyword(schema: dict[str, JSON]) -> dict[str, JSON] | None:
    """Returns the keyword beside which all others are ignored; None without one."""
    for keyword in VALUE_KEYWORDS:
        if keyword in schema:
            return {keyword: schema[keyword]}
    for keyword in LIST_KEYWORDS:
        if isinstance(schema.get(keyword), list):
            return {"anyOf": _loosened_list(schema[keyword])}
    options = schema.get("allOf")
    if isinstance(options, list):
        if len(options) == 1:
            return {"allOf": _loosened_list(options)}
        return {}
    return None


def _loosened_value(keyword: str, value: JSON) -> JSON:
    if keyword in SCHEMA_KEYWORDS:
        return loosened(value)
    if keyword in MAP_KEYWORDS:
        return _loosened_map(value)
    if keyword == "prefixItems":
        return _loosened_list(value)
    return value


def _loosened_map(value: JSON) -> JSON:
    if not isinstance(value, dict):
        return value
    return {name: loosened(member) for name, member in value.items()}


def _loosened_list(value: JSON) -> JSON:
    if not isinstance(value, list):
        return value
    return list(map(loosened, value))
