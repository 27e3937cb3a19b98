"""Structured outputs: replies that satisfy a JSON schema, a pattern, a grammar or choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.core.api.plain import PlainGeneration
    from app.core.base import Bounded
    from app.core.engine.constraints import Constraints
    from app.core.extensions import ServerParts
    from app.core.server.http.route import PlainHandler
    from app.extensions.forms.late_chats import LateFormChats

CHATS = "/v1/chat/completions"


class Forms(Extension):
    """Compiles schemas, patterns and grammars, and draws replies from them."""

    name = "forms"

    def __init__(self, parts: ServerParts) -> None:
        from app.extensions.forms.constraints import FormConstraints

        super().__init__(parts)
        self._schemas = FormConstraints()
        self._chats: LateFormChats | None = None

    def constraints(self) -> Constraints:
        """Returns the compiler of schemas, patterns and grammars, which all requests share."""
        return self._schemas

    def plain_chats(self, chats: PlainGeneration) -> PlainHandler | None:
        """Returns what answers chats with tools or a schema without waiting."""
        version = self.parts.pipeline.version
        if version.answers(CHATS) or CHATS in version.readings or version.version.is_new:
            return None
        from app.extensions.forms.late_chats import LateFormChats

        self._chats = LateFormChats(self.parts.pipeline, self._schemas, chats)
        return self._chats

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the compiled schemas, and the forms of chats."""
        caches: dict[str, Bounded] = {"schemas": self._schemas}
        if self._chats is not None:
            caches["forms of chats"] = self._chats.forms
        return caches
