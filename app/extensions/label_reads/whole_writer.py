"""A writer of whole answers."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from app.core.api.choice_state import ChoiceState
from app.core.api.writer import ResponseWriter


class WholeWriter(ResponseWriter):
    """Writes whole answers that a function makes of the choices."""

    def __init__(self, choices: int, answer: Callable[[Sequence[ChoiceState]], Struct]) -> None:
        super().__init__(choices)
        self._answer = answer

    def whole(self) -> Struct:
        """Returns the whole answer, once all outputs are collected."""
        return self._answer(self.choices)
