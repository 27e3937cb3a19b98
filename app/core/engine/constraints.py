"""The port for constrained replies: values of JSON schemas, texts of patterns and grammars.

Without the extension `forms`, requests with such a form are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias

if TYPE_CHECKING:
    from config.settings import ToolSettings

MAX_PATH_LENGTH = 200
"""Most characters of a path in an error, from the path's end."""
Grammar: TypeAlias = Any
"""A grammar that `Constraints` has compiled."""
AllowedTexts: TypeAlias = "Callable[[str], Sequence[str]]"
"""Returns the texts that may follow a text, each with another first character; "" is its end.

Raises SchemaError if that takes too long.
"""


class SchemaError(ValueError):
    """A schema, pattern or grammar that cannot be used.

    `path` leads to the place in a schema, such as ``properties.city.type``.
    """

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        if len(path) > MAX_PATH_LENGTH:
            self.path = f"...{path[-MAX_PATH_LENGTH:]}"
        super().__init__(f"{self.path}: {message}" if path else message)


class Size(IntEnum):
    """How much a drawn value holds."""

    LEAST = 0
    """Few characters, and empty objects where allowed."""
    BRIEF = 1
    """Few characters."""
    FRUGAL = 2
    """No optional parts, but no empty objects either."""
    USUAL = 3


class SchemaVerdict(NamedTuple):
    """vLLM's answer to a schema, which its structured output backends decide."""

    refusal: str = ""
    """Message of status 400; empty if the schema is accepted."""
    fails: bool = False
    """The schema is accepted, but the engine cannot compile it: status 500."""
    suits_tags: bool = True
    """The schema may be a part of a structural tag, as that of a strict tool is."""


class CompiledSchema(Protocol):
    """A JSON schema from which values can be drawn."""

    def sample(self, rng: Random, settings: ToolSettings, size: Size = Size.USUAL) -> object:
        """Returns a JSON value that satisfies the schema. Raises SchemaError without one."""

    def accepts(self, value: Any) -> bool:
        """Returns whether `value` satisfies the schema."""


class Constraints:
    """Compiles schemas, patterns and grammars, and writes texts that satisfy them.

    These methods refuse everything; the extension `forms` overrides them.
    """

    def compile(self, schema: object, lenient: bool = False) -> CompiledSchema:
        """Returns `schema`, ready to draw from; `lenient` leaves out its wrong parts.

        Raises:
            SchemaError: the schema cannot be used.
        """
        self._refuse()

    def verdict_on(self, schema: object) -> SchemaVerdict:
        """Returns vLLM's answer to `schema`. Raises SchemaError if the schema is too large."""
        self._refuse()

    def compile_structural_tag(self, tag: str) -> Grammar:
        """Returns the grammar of a structural tag. Raises SchemaError."""
        self._refuse()

    def compile_grammar(self, text: str) -> Grammar:
        """Returns the grammar that `text` describes, in EBNF or Lark's notation.

        Raises:
            SchemaError: the text is no grammar.
        """
        self._refuse()

    def derive_text(
        self,
        grammar: Grammar,
        characters: int,
        rng: Random,
        settings: ToolSettings,
        free_text: Callable[[int, Random], str],
    ) -> str:
        """Returns a text of `grammar` with about so many characters.

        `free_text` writes text where the grammar allows any. Raises SchemaError.
        """
        self._refuse()

    def matching_text(self, pattern: str, rng: Random) -> str:
        """Returns a text that `pattern` matches as a whole. Raises SchemaError."""
        self._refuse()

    def next_characters(self, pattern: str, characters: str) -> AllowedTexts:
        """Returns a function that finds which of `characters` may follow in a match of `pattern`.

        Raises:
            SchemaError: The pattern is invalid.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SchemaError("this server was built without the extension 'forms'")
