"""Schema keywords, sizes of values, work budgets and errors, shared by reading and drawing."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from app.core.base.clock.pause import pause_if_possible
from app.core.engine.constraints import MAX_PATH_LENGTH
from app.core.engine.constraints import SchemaError as SchemaError
from app.core.engine.constraints import Size as Size

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
SCHEMA_KEYWORDS = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
"""Keywords whose value is a schema."""
SCHEMA_LIST_KEYWORDS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
"""Keywords whose value is a list of schemas."""
SCHEMA_MAP_KEYWORDS = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)
"""Keywords whose value maps names to schemas."""
STEPS_PER_PAUSE = 400
"""Steps of work, about 4 ms, between pauses for other greenlets."""
MEMBERS_PER_STEP = 16
"""Members of a list or map that are read per step of work."""
MAX_SHUFFLED = 1000
"""Maximum members of a list that are tried in random order.

More members are tried in their own order, from a random start.
"""
T = TypeVar("T")


class UnsatisfiableError(SchemaError):
    """No accepted value or text was found; another draw may find one."""


class WorkExhaustedError(SchemaError):
    """The work budget is used up; further draws cannot help."""


class WorkBudget:
    """Steps left for one draw, about 10 us of work each; pauses for other greenlets."""

    __slots__ = ("_pause_at", "left")

    def __init__(self, steps: int) -> None:
        self.left = steps
        self._pause_at = steps - STEPS_PER_PAUSE

    def spend(self, steps: int = 1) -> None:
        """Subtracts `steps`. Raises WorkExhaustedError when none are left."""
        self.left -= steps
        if self.left < self._pause_at:
            if self.left < 0:
                raise WorkExhaustedError("the schema is too complex to satisfy")
            self._pause_at = self.left - STEPS_PER_PAUSE
            pause_if_possible()


def shuffled(members: Sequence[T], rng: Random) -> Sequence[T]:
    """Returns the order of `members` for a draw that tries them."""
    if len(members) <= MAX_SHUFFLED:
        return rng.sample(members, len(members))
    start = rng.randrange(len(members))
    return [*members[start:], *members[:start]]


def join_path(path: str, name: str) -> str:
    """Returns the path of `name` inside `path`, cut to the length that an error shows."""
    if path:
        return f"{path}.{name}"[-MAX_PATH_LENGTH - 1 :]
    return name
