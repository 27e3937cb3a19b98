"""Beam search of chats and completions (`use_beam_search`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.core.engine.engine import Engine, Search
    from app.core.engine.outputs import Emit
    from app.core.engine.request import EngineRequest
    from app.core.engine.sequence import Handle
    from config import Settings as AllSettings


class BeamSearches(Extension):
    """Runs the beam searches of the simulated engine."""

    name = "beam_search"

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether a simulated model generates."""
        return settings.model.generates and not settings.engine.is_real

    def beam_search(self) -> Search:
        """Returns what runs the search of a request."""
        return self._search

    def _search(self, engine: Engine, requests: Sequence[EngineRequest], emit: Emit) -> Handle:
        from app.extensions.beam_search.search import search  # few requests search

        return search(engine, self.parts.tokenizer, requests, emit)
