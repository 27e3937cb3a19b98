"""Settings of WSGI middleware."""

from typing import Annotated

from config.declaration import About, Section


class WsgiMiddlewareSettings(Section, frozen=True, kw_only=True):
    """WSGI middleware around the application."""

    middleware: Annotated[tuple[str, ...], About(repeated=True)] = ()
    """WSGI middleware to wrap around the application, each as MODULE.NAME. The last middleware in
    the list is the outermost. ASGI middleware does not run and causes a warning. The flag may be
    repeated."""
