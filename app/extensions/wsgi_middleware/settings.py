"""Settings of WSGI middleware."""

from typing import Annotated

from config.declaration import About, Section


class WsgiMiddlewareSettings(Section, frozen=True, kw_only=True):
    """WSGI middleware around the application."""

    middleware: Annotated[tuple[str, ...], About(repeated=True)] = ()
    """WSGI middleware functions or classes to wrap around the application, each specified as
    MODULE.NAME. The last middleware in the list is the outermost. ASGI middleware is not run; a
    warning is logged instead. The flag can be repeated."""
