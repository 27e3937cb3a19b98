"""GET /openapi.json with pages that show it, and GET /, which lists the routes of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.serving.http.route import Route


class OpenApi(Extension):
    name = "openapi"

    def routes(self) -> Mapping[str, Sequence[Route]]:
        from app.extensions.openapi.document import document_routes, root_routes
        from config import VLLM_VERSION

        parts = self.parts
        served_names = parts.settings.model.served_names
        about = {"plays": f"vLLM {VLLM_VERSION}", "models": served_names}
        blueprints = {"root": root_routes(parts.routes, about)}
        if not parts.settings.api.disable_fastapi_docs:
            root_path = parts.server.root_path.rstrip("/")
            blueprints["openapi"] = document_routes(parts.routes, root_path, served_names[0])
        return blueprints


EXTENSION = OpenApi
