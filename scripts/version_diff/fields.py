"""Fields of requests and responses, and of the structs of KV events."""

import ast
from collections.abc import Iterator

from scripts.version_diff.fact import Fact
from scripts.version_diff.options import field_attributes
from scripts.version_diff.package import Module, Package
from scripts.version_diff.values import MAX_DEPTH, ClassField, Scope, fields_of

EVENTS_FILE = "vllm/distributed/kv_events.py"
MODEL_BASES = ("BaseModel", "Struct", "TypedDict")
"""Bases outside vLLM of classes that become JSON."""
DATACLASS_FILES = ("vllm/logprobs.py", "vllm/sampling_params.py")
"""Files whose dataclasses are parts of requests and responses."""
ALIASES = ("alias", "serialization_alias", "name")
"""Arguments of `Field` with the name of a field in JSON: pydantic's and msgspec's."""
ABSENT = "absent"
"""Default of the fields of a dictionary that need not be there."""


def field_facts(package: Package) -> Iterator[Fact]:
    """Yields fields of requests and responses."""
    for module in package.modules("vllm/entrypoints/"):
        if any(base in module.text for base in (*MODEL_BASES, "protocol import")):
            yield from _facts(package, module, kind="field")
    for path in DATACLASS_FILES:
        dataclasses = package.module(path)
        if dataclasses is not None:
            yield from _facts(package, dataclasses, kind="field")


def event_facts(package: Package) -> Iterator[Fact]:
    """Yields fields of the structs of KV events."""
    module = package.module(EVENTS_FILE)
    if module is not None:
        yield from _facts(package, module, kind="KV event")


def _facts(package: Package, module: Module, kind: str) -> Iterator[Fact]:
    scope = Scope(package, module)
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        is_dataclass = _is_dataclass(module, node)
        if not is_dataclass and not _is_model(scope, node):
            continue
        is_optional = "total=False" in map(ast.unparse, node.keywords)
        for name, class_field in fields_of(scope, node).items():
            is_private = name.startswith("_") and not is_dataclass
            if name == "model_config" or is_private or _is_excluded(class_field):
                continue
            attributes = field_attributes(class_field)
            if is_optional and "Required[" not in attributes["type"]:
                attributes["default"] = ABSENT
            if kind == "field":
                name = _json_name(class_field)
                yield Fact("field", name, owner=node.name, attributes=attributes)
            else:
                yield Fact("KV event", name, owner=node.name, attributes=attributes)


def _is_dataclass(module: Module, node: ast.ClassDef) -> bool:
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    return module.path in DATACLASS_FILES and "dataclass" in decorators


def _is_excluded(class_field: ClassField) -> bool:
    """Returns whether a field is not part of the JSON."""
    excluded = class_field.keyword("exclude")
    return isinstance(excluded, ast.Constant) and excluded.value is True


def _json_name(class_field: ClassField) -> str:
    for argument in ALIASES:
        alias = class_field.keyword(argument)
        if isinstance(alias, ast.Constant) and isinstance(alias.value, str):
            return alias.value
    return class_field.name


def _is_model(scope: Scope, node: ast.ClassDef, depth: int = 0) -> bool:
    """Returns whether a class is derived from one of `MODEL_BASES`."""
    for base in node.bases:
        name = ast.unparse(base).rpartition(".")[2]
        if name in MODEL_BASES:
            return True
        resolved = scope.class_at(base)
        if resolved is not None and depth < MAX_DEPTH and _is_model(*resolved, depth + 1):
            return True
    return False
