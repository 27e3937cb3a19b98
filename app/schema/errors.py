"""What can be wrong with a schema, and the allowance of work that every draw has."""

from __future__ import annotations

from app.clock.pause import Slices

LONGEST_PATH = 200
"""Characters of a path that an error shows, from its end."""

PART = 500
"""Items of a long list that are looked at in one go."""
MEMBERS_A_STEP = 20
"""Items or properties that take one step of work to look at."""
STEPS_A_PART = PART // MEMBERS_A_STEP

SETTLED_STEPS = 50
"""Steps of an allowance that are counted together: most draws take fewer."""


class SchemaError(ValueError):
    """A schema or pattern that cannot be used; `path` leads there, such as ``properties.city.type``."""

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path if len(path) <= LONGEST_PATH else f"...{path[-LONGEST_PATH:]}"
        super().__init__(f"{self.path}: {message}" if path else message)


def inner_path(path: str, name: str) -> str:
    """The path of `name` in `path`, no longer than what an error shows of it."""
    return f"{path}.{name}"[-LONGEST_PATH - 1 :] if path else name


class Unsatisfiable(SchemaError):
    """Well formed, but no value (or text) was found that it accepts."""


class Contradiction(Exception):
    """The demands made of one value exclude each other; another choice may still do."""


class Allowance:
    """How many steps of work are left: what a hostile schema asks for ends when they are used up.

    A step is a few microseconds: one keyword checked, one value drawn. Work comes in slices, after each of
    which other greenlets have their turn.
    """

    __slots__ = ("_settled", "_stop", "left", "slices")

    def __init__(self, steps: int, slices: Slices) -> None:
        self.slices = slices
        self.left = self._settled = steps
        self._stop = max(0, steps - SETTLED_STEPS)

    def spend(self, steps: int = 1) -> None:
        """Use `steps` up; raises Unsatisfiable when there are no more."""
        self.left -= steps
        if self.left < self._stop:
            if self.left < 0:
                raise Unsatisfiable("the schema takes too much work to satisfy")
            self.settle()

    def settle(self) -> None:
        """Count what was spent towards the slice of work that is under way; the end of a draw does, too."""
        spent, self._settled = self._settled - self.left, self.left
        self._stop = max(0, self.left - SETTLED_STEPS)
        self.slices.spend(spent)
