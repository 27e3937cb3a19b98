"""JSON Schemas of the configuration file and of script files, for editors.

`init` writes them beside the files that it copies to a project. A schema states the rules of single
values. The server checks rules between settings.
"""

import json
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from app.core.settings import settings_table
from config.declaration import DURATION, JSON, OBJECTS, SIZE
from config.settings import Setting, field_docs
from config.sources import IGNORED

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DURATION_TEXT = r"^\s*[+-]?([0-9]+|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)\s*$"
SIZE_TEXT = r"^\s*([0-9]+(\.[0-9]*)?|\.[0-9]+)(([kKMGT]i?)?B)?\s*$"
COUNT_TEXT = r"^\s*[+-]?[0-9]+(\.[0-9]+)?[kmgtKMGT]?\s*$"
"""A number in quotes, or with a unit of vLLM such as `8k`."""
JSON_TEXT = r'^\s*([\[{"]|-?[0-9]|true|false|null)'
SCALARS: dict[object, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
}
TEXTS = {"type": ["array", "string"], "items": {"type": "string"}}
MARKED: dict[str, dict[str, Any]] = {
    DURATION: {"type": ["string", "integer"], "pattern": DURATION_TEXT},
    SIZE: {"type": ["string", "integer"], "pattern": SIZE_TEXT, "minimum": 1},
    JSON: {"pattern": JSON_TEXT},
    OBJECTS: {"type": ["array", "string", "object"], "items": {"type": ["string", "object"]}},
}


def configuration_schema() -> dict[str, Any]:
    """Returns the schema of the file of `--config`, without settings of plugins."""
    properties: dict[str, Any] = {}
    for row in settings_table().rows:
        properties[row.name] = _schema_of(row)
        for name in {*row.names, *(name.replace("-", "_") for name in row.names)} - {row.name}:
            properties[name] = {"$ref": f"#/properties/{row.name}"}
    for name in IGNORED:
        properties.setdefault(name, {"description": "Accepted and ignored."})
    return {
        "$schema": DIALECT,
        "title": "Understudy's configuration file",
        "type": ["object", "null"],
        "properties": dict(sorted(properties.items())),
        "additionalProperties": False,
    }


def script_schema() -> dict[str, Any]:
    """Returns the schema of a file of `--script`."""
    rules = import_module("app.extensions.scripts.rules")
    schema = msgspec.json.schema(rules.Script, schema_hook=_any_value)
    structs = {kind.__name__: kind for kind in vars(rules).values() if _is_struct(kind)}
    for name, definition in schema["$defs"].items():
        if "description" in definition:  # a docstring, from which Python 3.13 removes the indent
            definition["description"] = cleandoc(definition["description"])
        if name not in structs:
            continue
        kind = structs[name]
        docs: dict[str, str] = {}
        for base in reversed(kind.__mro__):
            if _is_struct(base) and base.__module__ == rules.__name__:
                docs.update(field_docs(base))
        for field in fields(kind):
            text = docs.get(field.name)
            if text and field.encode_name in definition["properties"]:
                definition["properties"][field.encode_name]["description"] = text
    then = schema["$defs"]["Rule"]["properties"]["then"]
    for choice in then["anyOf"]:
        if choice.get("type") == "string":
            choice["enum"] = [rules.PASS]
    return {"$schema": DIALECT, "title": "A script of replies for Understudy", **schema}


def schema_files() -> dict[str, str]:
    """Returns the texts of the schemas by the names of their files."""
    schemas = {"settings": configuration_schema()}
    if find_spec("app.extensions.scripts") is not None:
        schemas["script"] = script_schema()
    return {
        f"{name}.schema.json": json.dumps(schema, ensure_ascii=False, indent=1) + "\n"
        for name, schema in schemas.items()
    }


def _schema_of(row: Setting) -> dict[str, Any]:
    """Returns the schema of a setting's value, with its help."""
    schema = _value_schema(row)
    if row.optional:
        schema = {"anyOf": [schema, {"enum": [None, ""]}]}
    return {"description": row.help, **schema}


def _value_schema(row: Setting) -> dict[str, Any]:
    marked = MARKED.get(row.kind.name)
    if marked is not None:
        return marked
    parts = list(_parts(row.type))
    for part in parts:
        if get_origin(part) is Literal:
            return {"enum": list(get_args(part))}
        if get_origin(part) is tuple:
            return TEXTS
    plain = next(part for part in parts if part in (str, bool, int, float))
    if plain in SCALARS:
        return SCALARS[plain]
    number = {"type": "integer" if plain is int else "number", **_limits(parts)}
    return {"anyOf": [number, {"type": "string", "pattern": COUNT_TEXT}]}


def _limits(parts: list[object]) -> dict[str, float]:
    """Returns the smallest and the largest number."""
    limits: dict[str, float] = {}
    for part in parts:
        if isinstance(part, Meta):
            names = (("minimum", part.ge), ("maximum", part.le), ("exclusiveMinimum", part.gt))
            limits.update({name: limit for name, limit in names if limit is not None})
    return limits


def _parts(annotation: object) -> Iterator[object]:
    """Yields the types and the metadata of an annotation, without items of lists."""
    yield annotation
    origin = get_origin(annotation)
    if origin in (tuple, Literal):
        return
    if origin is Annotated or origin is not None:
        for part in get_args(annotation):
            yield from _parts(part)


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _any_value(kind: type) -> dict[str, Any]:
    """Returns the schema of a type that msgspec does not know: `object` accepts any value."""
    return {"title": "any value"}
