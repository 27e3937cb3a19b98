"""GET /openapi.json with pages that show it, and GET /, which lists the routes of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.openapi.settings import OpenApiSettings

if TYPE_CHECKING:
    from app.core.server.flask.application import Understudy
    from app.core.server.http.route import Route
    from config import Settings as AllSettings


class OpenApi(Extension):
    """Describes the routes of the application."""

    name = "openapi"
    Settings = OpenApiSettings

    @classmethod
    def describe(cls, app: Understudy, settings: AllSettings) -> None:
        """Describes an indexer's routes."""
        from app.extensions.openapi.document import document_routes, root_routes

        def all_routes() -> Iterator[Route]:
            return app.routes

        app.add_routes("root", root_routes(all_routes, {"plays": "an index of KV blocks"}))
        if not settings.section(OpenApiSettings).disable_fastapi_docs:
            app.add_routes("openapi", document_routes(all_routes, "", settings.model.model))

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes, with all others as their content."""
        from app.extensions.openapi.document import document_routes, root_routes
        from config import VLLM_VERSION

        parts = self.parts
        served_names = parts.settings.model.served_names
        about = {"plays": f"vLLM {VLLM_VERSION}", "models": served_names}
        blueprints = {"root": root_routes(parts.routes, about)}
        if not parts.settings.section(OpenApiSettings).disable_fastapi_docs:
            root_path = parts.server.root_path.rstrip("/")
            blueprints["openapi"] = document_routes(parts.routes, root_path, served_names[0])
        return blueprints
