"""The outcome of a check of a schema, and the limit of its work."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.core.base.clock.pause import pause_if_possible

MAX_STEPS = 50_000
"""Maximum schemas that a check reads, as in llguidance."""
MAX_DEPTH = 100
"""Maximum levels of nested schemas and references."""
STEPS_PER_PAUSE = 300
"""Schemas read between pauses for other greenlets: about 3 ms."""


class RefusalError(ValueError):
    """A backend refuses the schema."""


class WorkLimitError(Exception):
    """The schema is too large to be checked."""


class Work:
    """Counts the schemas that a check reads."""

    def __init__(self) -> None:
        self._steps = 0
        self._depth = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Reads one schema, which may contain nested schemas. Raises WorkLimitError."""
        self._steps += 1
        self._depth += 1
        if self._steps > MAX_STEPS or self._depth > MAX_DEPTH:
            raise WorkLimitError
        if self._steps % STEPS_PER_PAUSE == 0:
            pause_if_possible()
        try:
            yield
        finally:
            self._depth -= 1
