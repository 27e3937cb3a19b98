"""Replies that are as long as the prompt, times a factor: long questions get long answers.

understudy --plugin examples/plugins/as_long_as_the_prompt.py --as-long-as-the-prompt-factor 0.5
"""

from collections.abc import Callable
from random import Random
from typing import Annotated

from msgspec import Meta

from app.plugins import About, EngineRequest, Plugin, Section

API = 2
VERSION = "1.0"
Factor = Annotated[float, Meta(ge=0, le=100)]


class FactorSettings(Section, frozen=True, kw_only=True):
    """Replies as long as the prompt."""

    factor: Annotated[
        Factor, About("Tokens of a reply for each token of its prompt.", live=True)
    ] = 1.0


class AsLongAsThePrompt(Plugin):
    """Sets the length of random replies."""

    name = "as-long-as-the-prompt"
    Settings = FactorSettings

    def reply_length(self) -> Callable[[EngineRequest, Random], int]:
        """Returns the function that sets lengths."""
        return self._length

    def _length(self, request: EngineRequest, rng: Random) -> int:
        factor: float = self.settings.factor
        return round(factor * len(request.prompt_ids))


EXTENSION = AsLongAsThePrompt
