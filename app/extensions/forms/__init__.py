"""Structured outputs: replies that satisfy a JSON schema, a pattern, a grammar or choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.engine.constraints import Constraints
    from app.core.extensions import ServerParts


class Forms(Extension):
    """Compiles schemas, patterns and grammars, and draws replies from them."""

    name = "forms"

    def __init__(self, parts: ServerParts) -> None:
        from app.extensions.forms.constraints import FormConstraints

        super().__init__(parts)
        self._schemas = FormConstraints()

    def constraints(self) -> Constraints:
        """Returns the compiler of schemas, patterns and grammars, which all requests share."""
        return self._schemas

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the compiled schemas."""
        return {"schemas": self._schemas}
