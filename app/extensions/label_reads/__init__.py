"""POST /generative_scoring and POST /v1/systemone: probabilities of labels instead of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.core.server.http.route import Route


class LabelReads(Extension):
    """Adds the routes that read the probabilities of labels."""

    name = "label_reads"

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes by the name of their group."""
        from app.extensions.label_reads.routes import routes

        return {"label_reads": routes(self.parts.pipeline, self.parts.settings.model)}
