"""vLLM's own lists of features that structured output backends lack, which decide the backend.

vLLM looks at every object within a schema, and so do these functions: an example, or a property
that has the name of a keyword, counts as the keyword.
"""

from collections.abc import Iterator, Mapping

RawSchema = Mapping[str, object]

UNSUPPORTED_ARRAY_KEYWORDS = frozenset(["uniqueItems", "contains", "minContains", "maxContains"])
XGRAMMAR_FORMATS = frozenset(
    [
        "email",
        "date",
        "time",
        "date-time",
        "duration",
        "ipv4",
        "ipv6",
        "hostname",
        "uuid",
        "uri",
        "uri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
    ]
)


def needs_other_backend(schema: object) -> bool:
    """Returns True if xgrammar lacks a feature of `schema`."""
    return any(map(_lacks_xgrammar, _all_objects(schema)))


def needs_outlines(schema: object) -> bool:
    """Returns True if llguidance lacks a feature of `schema`."""
    return any("patternProperties" in part for part in _all_objects(schema))


def _all_objects(schema: object) -> Iterator[RawSchema]:
    """Yields the objects in `schema`, except objects in a list that is an item of a list."""
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            yield part
            for value in part.values():
                if isinstance(value, list):
                    stack += [item for item in value if isinstance(item, dict)]
                else:
                    stack.append(value)


def _lacks_xgrammar(schema: RawSchema) -> bool:
    """Returns True if xgrammar lacks a feature of `schema` itself."""
    kind = schema.get("type")
    types = [kind]
    if isinstance(kind, list):
        types = kind
    if ("integer" in types or "number" in types) and "multipleOf" in schema:
        return True
    if "array" in types and not UNSUPPORTED_ARRAY_KEYWORDS.isdisjoint(schema):
        return True
    if "string" in types and (_has_rare_format(schema) or _is_bounded_pattern(schema)):
        return True
    if "object" in types and _has_complex_names(schema):
        return True
    all_of = schema.get("allOf")
    return isinstance(all_of, list) and len(all_of) > 1


def _has_rare_format(schema: RawSchema) -> bool:
    if "format" not in schema:
        return False
    name = schema["format"]
    return not isinstance(name, str) or name not in XGRAMMAR_FORMATS


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
