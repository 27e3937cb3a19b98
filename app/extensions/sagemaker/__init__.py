"""POST /invocations, the single route of SageMaker, with stateful sessions if they are enabled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position, late_routes
from app.extensions.sagemaker.settings import SageMakerSettings

if TYPE_CHECKING:
    from app.core.server.http.route import Route
    from app.core.server.middleware.stack import Middleware


class SageMaker(Extension):
    """Serves all families by one route. Opens and closes sessions, and rejects unknown ones."""

    name = "sagemaker"
    Settings = SageMakerSettings

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the sessions, if the server has any."""
        section = self.parts.settings.section(SageMakerSettings)
        if not section.sagemaker_enable_stateful_sessions:
            return {}
        from app.extensions.sagemaker.sessions import Sessions

        expiration_s = section.sagemaker_sessions_expiration
        sessions = Sessions(self.parts.body, self.parts.pipeline.identity, expiration_s)
        return {Position.INNERMOST: [sessions]}

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the route."""
        return {"invocations": late_routes(self._load, "POST /invocations")}

    def _load(self) -> list[Route]:
        from app.extensions.sagemaker.invocations import invocation_routes

        return invocation_routes(self.parts.body, self.parts.routes)
