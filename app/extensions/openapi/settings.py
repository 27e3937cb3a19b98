"""Settings of the description of all routes."""

from config.declaration import Section


class OpenApiSettings(Section, frozen=True, kw_only=True):
    """The OpenAPI document of all routes."""

    disable_fastapi_docs: bool = False
    """Disable the /openapi.json, /docs, and /redoc routes."""
