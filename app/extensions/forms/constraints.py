"""The port of the core for constrained replies, implemented with `Schemas`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from app.core.engine.constraints import Constraints
from app.extensions.forms.schema import Schemas

if TYPE_CHECKING:
    from app.extensions.forms.schema.derivation import Grammar
    from config.settings import ToolSettings


class FormConstraints(Schemas, Constraints):
    """See `app.core.engine.constraints.Constraints`. Grammars are not cached."""

    def compile_structural_tag(self, tag: str) -> Grammar:
        """Returns the grammar of a structural tag. Raises SchemaError."""
        self.load()
        from app.extensions.forms.grammar.compiler import compile_structural_tag

        return compile_structural_tag(tag, self)

    def compile_grammar(self, text: str) -> Grammar:
        """Returns the grammar that `text` describes. Raises SchemaError."""
        self.load()
        from app.extensions.forms.grammar.compiler import compile_grammar

        return compile_grammar(text, self)

    def derive_text(
        self,
        grammar: Grammar,
        characters: int,
        rng: Random,
        settings: ToolSettings,
        free_text: Callable[[int, Random], str],
    ) -> str:
        """Returns a text of `grammar` with about so many characters. Raises SchemaError."""
        from app.extensions.forms.schema.derivation import write

        return write(grammar, characters, rng, settings, free_text)
