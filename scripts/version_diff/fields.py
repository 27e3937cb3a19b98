"""Fields of requests and responses, and of the structs of KV events."""

import ast
from collections.abc import Iterator

from scripts.version_diff.fact import Fact
from scripts.version_diff.options import field_attributes
from scripts.version_diff.package import Module, Package
from scripts.version_diff.values import MAX_DEPTH, Scope, fields_of

EVENTS_FILE = "vllm/distributed/kv_events.py"
MODEL_BASES = ("BaseModel", "Struct")
"""Bases outside vLLM of classes that become JSON: pydantic's and msgspec's."""


def field_facts(package: Package) -> Iterator[Fact]:
    """Yields fields of requests and responses."""
    for module in package.modules("vllm/entrypoints/"):
        if any(base in module.text for base in ("BaseModel", "Struct", "protocol import")):
            yield from _facts(package, module, kind="field")
    sampling = package.module("vllm/sampling_params.py")
    if sampling is not None:
        yield from _facts(package, sampling, kind="field")


def event_facts(package: Package) -> Iterator[Fact]:
    """Yields fields of the structs of KV events."""
    module = package.module(EVENTS_FILE)
    if module is not None:
        yield from _facts(package, module, kind="KV event")


def _facts(package: Package, module: Module, kind: str) -> Iterator[Fact]:
    scope = Scope(package, module)
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef) or not _is_model(scope, node):
            continue
        for name, class_field in fields_of(scope, node).items():
            if name == "model_config" or name.startswith("_"):
                continue
            attributes = field_attributes(class_field)
            if kind == "field":
                yield Fact("field", name, owner=node.name, attributes=attributes)
            else:
                yield Fact("KV event", name, owner=node.name, attributes=attributes)


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
