"""Pooling models: embeddings, scores, classes and rerankings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.pooling.paths import every_path, served_paths

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.server.http.route import Route
    from app.extensions.pooling.runner import PoolingRunner
    from config import Settings


class Pooling(Extension):
    """Routes of pooling models, and of models that embed beside generating."""

    name = "pooling"

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Returns whether the task of the model has pooling routes."""
        return bool(served_paths(settings.model))

    @classmethod
    def paths_of_other_models(cls, settings: Settings) -> Collection[str]:
        """Returns the paths that only models of other tasks have."""
        return every_path() - set(served_paths(settings.model))

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes that the task of the model allows."""
        from app.extensions.pooling.plain import PlainEmbeddings
        from app.extensions.pooling.routes import routes

        plain = PlainEmbeddings(self._runner)
        self.parts.live.watch(plain.refresh)
        return {"pooling": routes(self._runner, self.parts.settings.model, plain)}

    @cached_property
    def _runner(self) -> PoolingRunner:
        from app.extensions.pooling.runner import PoolingRunner

        return PoolingRunner(self.parts.pipeline, self.parts.settings.model)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the features of texts."""
        return {"embeddings": self._runner.model.known_features}
