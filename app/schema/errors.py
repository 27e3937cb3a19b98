"""What can be wrong with a schema, and the allowance of work that every draw has."""

from __future__ import annotations

MOST_PATH = 200
"""Characters that are told of a path, from its end."""


class SchemaError(ValueError):
    """A schema or pattern that cannot be used; `path` leads there, such as ``properties.city.type``."""

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path if len(path) <= MOST_PATH else f"...{path[-MOST_PATH:]}"
        super().__init__(f"{self.path}: {message}" if path else message)


class Unsatisfiable(SchemaError):
    """Well formed, but no value (or text) was found that it accepts."""


class Contradiction(Exception):
    """The demands made of one value exclude each other; another choice may still do."""


class Allowance:
    """How many steps of work are left: what a hostile schema asks for ends when they are used up.

    A step is a few microseconds: one keyword checked, one value drawn.
    """

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Use `steps` up; raises Unsatisfiable when there are no more."""
        self.left -= steps
        if self.left < 0:
            raise Unsatisfiable("the schema takes too much work to satisfy")
