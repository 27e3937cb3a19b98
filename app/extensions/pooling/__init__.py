"""Pooling models: embeddings, scores, classes and rerankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.core.server.http.route import Route


class Pooling(Extension):
    """Routes of pooling models, and of models that embed beside generating."""

    name = "pooling"

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes that the task of the model allows."""
        from app.extensions.pooling.routes import routes

        pooling_routes = routes(self.parts.pipeline, self.parts.settings.model)
        return {"pooling": pooling_routes} if pooling_routes else {}
