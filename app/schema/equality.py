"""Equality of JSON values: 1 and 1.0 are one number, true is none, and objects have no order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any


def identity(value: Any) -> Hashable:
    """Something hashable that is equal for equal JSON values, and only for those."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", tuple(map(identity, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(each)) for name, each in value.items()))
    return value if isinstance(value, (str, int, float)) else None


class Options(list[Any]):
    """The values of an ``enum``, quick to be looked for."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__(values)
        self.identities = frozenset(map(identity, self))

    def has(self, value: Any) -> bool:
        """True when `value` is equal to one of the options."""
        return identity(value) in self.identities
