"""The shape of answers: which of their fields a version of vLLM has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, get_args

from msgspec import UNSET, Struct
from msgspec.structs import fields, force_setattr

from app.core.protocol.common import GAP, encode


def schemas_of(kind: type[Struct]) -> Sequence[str]:
    """Returns the names of a struct's schemas in vLLM's /openapi.json, by default its own name."""
    schemas: Sequence[str] = getattr(kind, "schemas", (kind.__name__,))
    return schemas


class Plan(NamedTuple):
    """Names of absent fields of a struct, and of its fields that may contain such structs."""

    absent: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


class Shape:
    """Encodes answers without the fields that a version of vLLM lacks.

    A struct with another name than its schema in vLLM has the class variable `schemas`. Fields that
    vLLM refuses by name, though its schema has lost them, are in the class variable
    `refused_fields`.
    """

    encode: Callable[[Any], bytes]
    """Encodes a struct or a JSON value. Absent fields of structs are unset, and stay so."""

    def __init__(self, absent: Collection[str]) -> None:
        """`absent` are names such as "ChatCompletionResponseChoice.weight_versions"."""
        self._absent = frozenset(absent)
        self._plans: dict[type, Plan] = {}
        self.encode = self._encode_narrowed if absent else encode

    def lacks_any(self, fields: Iterable[str]) -> bool:
        """Returns whether one of some fields, such as "StreamOptions.include_usage", is absent."""
        return not self._absent.isdisjoint(fields)

    def absent_fields(self, kind: type[Struct]) -> Sequence[str]:
        """Returns the names of a struct's fields that the version lacks."""
        return (self._plans.get(kind) or self._plan(kind)).absent

    def template(self, value: Struct) -> list[bytes]:
        """Returns the parts of the encoded struct before, between and after its `HOLE`s."""
        return self.encode(value).split(GAP)

    def narrow(self, value: object) -> None:
        """Unsets the absent fields of a struct, and of structs in it."""
        if isinstance(value, Struct):
            absent, children = self._plans.get(type(value)) or self._plan(type(value))
            for name in absent:
                force_setattr(value, name, UNSET)
            for name in children:
                child = getattr(value, name)
                if child is not None and child is not UNSET:
                    self.narrow(child)
        elif isinstance(value, list | tuple):
            for item in value:
                self.narrow(item)

    def _encode_narrowed(self, value: Any) -> bytes:
        """Returns the JSON of an answer without the fields that the version lacks."""
        # Chunks without absent fields, and without structs that may have some, need no more calls.
        plan = self._plans.get(type(value))
        if plan is None or plan.children:
            self.narrow(value)
        elif isinstance(value, Struct):
            for name in plan.absent:
                force_setattr(value, name, UNSET)
        return encode(value)

    def _plan(self, kind: type[Struct]) -> Plan:
        plan = self._plans.get(kind)
        if plan is None:
            self._plans[kind] = Plan()  # a struct may contain others of its kind
            plan = self._new_plan(kind)
            self._plans[kind] = plan
        return plan

    def _new_plan(self, kind: type[Struct]) -> Plan:
        absent: list[str] = []
        children: list[str] = []
        refused: Collection[str] = getattr(kind, "refused_fields", ())
        for field in fields(kind):
            if field.name in refused:
                continue
            names = [f"{schema}.{field.encode_name}" for schema in schemas_of(kind)]
            if not self._absent.isdisjoint(names):
                absent.append(field.name)
            elif any(map(self._is_narrowed, types_in(field.type))):
                children.append(field.name)
        return Plan(tuple(absent), tuple(children))

    def _is_narrowed(self, kind: type) -> bool:
        """Returns whether a class may have absent fields; one that is not named has none."""
        return kind is not Struct and issubclass(kind, Struct) and self._plan(kind) != Plan()


def types_in(annotation: object) -> Iterable[type]:
    """Yields the classes in an annotation, such as the members of a union."""
    arguments = get_args(annotation)
    if not arguments and isinstance(annotation, type):
        yield annotation
    for argument in arguments:
        yield from types_in(argument)


NEWEST_SHAPE = Shape(())
"""Encodes all fields."""
