"""Prints the JSON Schemas of the options of vLLM's `serve` that take objects.

Runs with the Python of an oracle's environment: vLLM's own parser knows the classes, and vLLM's
validators decide about values that a schema does not show, such as names of enumerations.
"""

import argparse
import enum
import json
import types
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import partial
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

DROPPED = ("title", "description", "default", "format")
"""Keywords that say nothing about validity here."""


class _Generator(GenerateJsonSchema):
    """Allows any value where a function of vLLM decides."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


def main() -> None:
    """Prints an object: option -> schema. Options whose objects are not checked are left out."""
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    schemas = {}
    for action in parser._actions:
        kind = _object_class(action.type)
        if kind is not None:
            schemas[action.option_strings[0].lstrip("-")] = _schema_of(kind)
    print(json.dumps(schemas, sort_keys=True))


def _object_class(read: Any, depth: int = 0) -> type | None:
    """Returns the class that an option's function reads, which it has as a default or a cell."""
    if not isinstance(read, types.FunctionType) or depth > 3:
        return None
    cells = [cell.cell_contents for cell in read.__closure__ or ()]
    for value in (*(read.__defaults__ or ()), *cells):
        if isinstance(value, type) and is_dataclass(value):
            return value
        found = _object_class(value, depth + 1)
        if found is not None:
            return found
    return None


def _schema_of(kind: type) -> dict[str, Any]:
    schema = TypeAdapter(kind).json_schema(schema_generator=_Generator)
    definitions = schema.pop("$defs", {})
    resolved = _resolved(schema, definitions)
    _adapt(resolved, kind, validate=TypeAdapter(kind).validate_json)
    return dict(resolved)


def _resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    """Returns a schema without references and `DROPPED` keywords."""
    if isinstance(schema, list):
        return [_resolved(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    result = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _resolved(item, definitions) for name, item in value.items()}
        elif key not in DROPPED:
            result[key] = _resolved(value, definitions)
    return result


def _adapt(
    schema: dict[str, Any],
    kind: type,
    validate: Callable[[str], object],
    path: tuple[str, ...] = (),
) -> None:
    """Changes the schemas of fields to what vLLM's validators accept."""
    hints = get_type_hints(kind)
    for name, property_schema in list(schema.get("properties", {}).items()):
        if _is_unexpected(name, path, validate):
            del schema["properties"][name]
            continue
        hint = hints.get(name)
        for member in _types_in(hint):
            if isinstance(member, type) and is_dataclass(member):
                _adapt(property_schema, member, validate, path=(*path, name))
        accepts = partial(_accepts, validate, (*path, name))
        schema["properties"][name] = _adapted(property_schema, hint, accepts)


def _accepts(validate: Callable[[str], object], path: tuple[str, ...], value: object) -> bool:
    """Returns whether vLLM accepts a value at a path."""
    document = value
    for key in reversed(path):
        document = {key: document}
    try:
        validate(json.dumps(document))
    except Exception:
        return False
    return True


def _adapted(
    schema: dict[str, Any], hint: Any, accepts: Callable[[object], bool]
) -> dict[str, Any]:
    enumerations = [
        member
        for member in _types_in(hint)
        if isinstance(member, type) and issubclass(member, enum.Enum)
    ]
    changed = schema
    if enumerations and not _is_nested(hint):
        changed = _accepted_names(enumerations[0], accepts)
    elif enumerations:
        changed = {key: value for key, value in schema.items() if key in ("type", "anyOf")}
    elif "enum" in schema and isinstance(schema["enum"][0], str):
        changed = _with_spellings(schema, accepts)
    if changed.get("type") == "array" and accepts("a,b"):
        changed = {"anyOf": [changed, {"type": "string"}]}
    if accepts(None) and not _has_null(changed):
        changed = {"anyOf": [changed, {"type": "null"}]}
    return changed


def _with_spellings(schema: dict[str, Any], accepts: Callable[[object], bool]) -> dict[str, Any]:
    words = schema["enum"]
    changed = dict(schema)
    if accepts(words[-1].upper()):
        changed["anyCase"] = True
    dashed = [word.replace("_", "-") for word in words if "_" in word]
    if dashed and accepts(dashed[0]):
        changed["dashes"] = True
    return changed


def _is_unexpected(name: str, path: tuple[str, ...], validate: Callable[[str], object]) -> bool:
    """Returns whether vLLM sets a field itself, and does not accept it from outside."""
    document: object = {name: None}
    for key in reversed(path):
        document = {key: document}
    try:
        validate(json.dumps(document))
    except ValidationError as error:
        return any(flaw["type"] == "unexpected_keyword_argument" for flaw in error.errors())
    except Exception:
        return False
    return False


def _accepted_names(
    enumeration: type[enum.Enum], accepts: Callable[[object], bool]
) -> dict[str, Any]:
    values: list[object] = []
    for member in enumeration:
        values += [member.name, member.value]
    accepted = [value for value in dict.fromkeys(map(_hashable, values)) if accepts(value)]
    if accepts("auto"):
        accepted.append("auto")
    schema: dict[str, Any] = {"enum": accepted}
    names = [value for value in accepted if isinstance(value, str)]
    if names and accepts(names[0].lower()) and accepts(names[0].upper()):
        schema["anyCase"] = True
    return schema


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _types_in(hint: Any) -> Iterator[Any]:
    """Yields a type, and the types that it is made of."""
    yield hint
    for argument in get_args(hint):
        yield from _types_in(argument)


def _is_nested(hint: Any) -> bool:
    """Returns whether an annotation is a list or dictionary."""
    origins = [getattr(member, "__origin__", None) for member in _types_in(hint)]
    return any(origin in (list, dict, set, tuple) for origin in origins)


def _has_null(schema: dict[str, Any]) -> bool:
    members = schema.get("anyOf", [schema])
    return any(member.get("type") == "null" or None in member.get("enum", ()) for member in members)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
