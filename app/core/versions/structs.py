"""The structs of requests and answers, as far as their fields contain them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import fields

from app.core.versions.shape import types_in


def structs_in(types: Iterable[object]) -> set[type[Struct]]:
    """Returns the structs in some annotations and in their fields."""
    found: set[type[Struct]] = set()
    waiting = [kind for annotation in types for kind in types_in(annotation)]
    while waiting:
        kind = waiting.pop()
        if issubclass(kind, Struct) and kind not in found:
            found.add(kind)
            for field in fields(kind):
                waiting += types_in(field.type)
    return found
