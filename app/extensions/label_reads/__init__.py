"""POST /generative_scoring, /v1/systemone, /v1/decisions: probabilities of labels, not text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, late_routes

if TYPE_CHECKING:
    from app.core.server.http.route import Route


class LabelReads(Extension):
    """Adds the routes that read the probabilities of labels."""

    name = "label_reads"

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes by the name of their group."""
        operations = ["POST /v1/systemone", "POST /v1/decisions"]
        if self.parts.settings.model.task == "generate":
            operations.insert(0, "POST /generative_scoring")
        return {"label_reads": late_routes(self._load, *operations)}

    def _load(self) -> list[Route]:
        from app.extensions.label_reads.routes import routes

        return routes(self.parts.pipeline, self.parts.settings.model)
