"""Finds references to other documents, which llguidance looks for and does not fetch.

It looks for the target of each ``$ref`` and ``$schema``, also where nothing uses the schema.
"""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urljoin

from app.extensions.forms.schema.backends.work import Work
from app.extensions.forms.schema.bounds import (
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_MAP_KEYWORDS,
)
from app.extensions.forms.schema.keywords import JSON

BASE = "http://document.invalid/"
"""Stands for the name of a document without one; names are relative to it."""
KNOWN_PREFIXES = ("https://json-schema.org/draft/", "http://json-schema.org/draft-")
"""Prefixes of the metaschemas, which llguidance has."""
REFERENCE_KEYWORDS = ("$ref", "$schema")
OLD_DRAFT = "http://json-schema.org/draft-0"
"""Prefix of the metaschemas that do not know the keywords below."""
NEW_KEYWORDS = frozenset(
    ["$defs", "dependentSchemas", "prefixItems", "unevaluatedItems", "unevaluatedProperties"]
)


class Subschema(NamedTuple):
    """A schema in a document, and the base URI of its references."""

    schema: dict[str, JSON]
    base: str


def external_reference(root: JSON, work: Work) -> str | None:
    """Returns the first reference to another document; None without one.

    Raises:
        ValueError: A name is not a URI.
        WorkLimitError: The document has too many schemas.
    """
    subschemas = list(_subschemas(root, work))
    names = {subschema.base for subschema in subschemas}
    for schema, base in subschemas:
        for keyword in REFERENCE_KEYWORDS:
            reference = schema.get(keyword)
            if not isinstance(reference, str) or reference.startswith(("#", *KNOWN_PREFIXES)):
                continue
            if urljoin(base, reference).partition("#")[0] not in names:
                return reference
    return None


def _subschemas(root: JSON, work: Work) -> Iterator[Subschema]:
    stack: list[tuple[JSON, str]] = [(root, BASE)]
    is_old = isinstance(root, dict) and str(root.get("$schema")).startswith(OLD_DRAFT)
    unknown = NEW_KEYWORDS if is_old else frozenset[str]()
    while stack:
        part, base = stack.pop()
        if isinstance(part, list):
            stack += [(item, base) for item in part]
        elif isinstance(part, dict):
            with work.step():
                name = part.get("$id", part.get("id"))
                if isinstance(name, str):
                    base = urljoin(base, name).partition("#")[0]
                yield Subschema(part, base)
            stack += [(value, base) for value in _inner_schemas(part, unknown)]


def _inner_schemas(schema: dict[str, JSON], unknown: frozenset[str]) -> Iterator[JSON]:
    for keyword, value in schema.items():
        if keyword in unknown:
            continue
        if keyword in SCHEMA_KEYWORDS or keyword in SCHEMA_LIST_KEYWORDS:
            yield value
        elif keyword in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            yield from value.values()
