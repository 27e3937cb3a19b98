"""GET /openapi.json with pages that show it, and GET /, which lists the routes of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, late_routes
from app.core.versions.chain import played_version
from app.extensions.openapi.settings import OpenApiSettings
from vllm_facts.version import NEWEST, level_of

if TYPE_CHECKING:
    from app.core.server.flask.application import Understudy
    from app.core.server.http.route import Route
    from app.core.versions.chain import PlayedVersion
    from config import Settings as AllSettings

DOCUMENTS = (
    "GET,HEAD /openapi.json",
    "GET,HEAD /docs",
    "GET,HEAD /docs/oauth2-redirect",
    "GET,HEAD /redoc",
)


class OpenApi(Extension):
    """Describes the routes of the application."""

    name = "openapi"
    order = 3  # describes the routes of all others
    Settings = OpenApiSettings

    @classmethod
    def describe(cls, app: Understudy, settings: AllSettings) -> None:
        """Describes an indexer's routes."""

        def all_routes() -> Iterator[Route]:
            return app.routes

        app.add_routes("root", _root_routes(all_routes, {"plays": "an index of KV blocks"}))
        if not settings.section(OpenApiSettings).disable_fastapi_docs:
            model = settings.model.model
            app.add_routes(
                "openapi", _document_routes(all_routes, "", model, played_version(NEWEST))
            )

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes, with all others as their content."""
        parts = self.parts
        served_names = parts.settings.model.served_names
        about = {
            "plays": f"vLLM {parts.pipeline.version.release}",
            "level": level_of(parts.pipeline.version.version),
            "models": served_names,
        }
        blueprints = {"root": _root_routes(parts.routes, about)}
        if not parts.settings.section(OpenApiSettings).disable_fastapi_docs:
            root_path = parts.server.root_path.rstrip("/")
            blueprints["openapi"] = _document_routes(
                parts.routes, root_path, served_names[0], parts.pipeline.version
            )
        return blueprints


def _root_routes(served: Callable[[], Iterable[Route]], about: Mapping[str, object]) -> list[Route]:
    def load() -> list[Route]:
        from app.extensions.openapi.document import root_routes

        return root_routes(served, about)

    return late_routes(load, "GET /")


def _document_routes(
    served: Callable[[], Iterable[Route]], root_path: str, model: str, played: PlayedVersion
) -> list[Route]:
    def load() -> list[Route]:
        from app.extensions.openapi.document import document_routes

        return document_routes(served, root_path, model, played)

    return late_routes(load, *DOCUMENTS)
