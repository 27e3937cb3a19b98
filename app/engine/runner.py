"""What the engine asks of a model."""

from __future__ import annotations

from typing import Protocol

from app.engine.reply import Reply
from app.engine.request import EngineRequest


class Model(Protocol):
    """Says what is said; the engine says when."""

    def reply(self, request: EngineRequest) -> Reply:
        """The whole reply. Called in order of arrival, so that replies depend on that order only.

        SchemaUnsatisfiable when no reply has the form that is asked for.
        """
