"""Imports the middleware that the settings name, and leaves out ASGI middleware."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from config import ConfigError

if TYPE_CHECKING:
    from app.core.extensions import WsgiWrapper

ASGI_PACKAGES = ("fastapi", "starlette", "vllm")
"""Packages that ASGI middleware imports, and that need not be installed here."""
log = logging.getLogger(__name__)


def usable_middleware(names: Iterable[str]) -> list[WsgiWrapper]:
    """Returns the WSGI middleware of `names`, and logs a warning for each that cannot run here.

    Raises:
        ConfigError: One cannot be imported, or is no class or function.
    """
    usable = []
    for name in names:
        middleware = load_middleware(name)
        if middleware is None:
            log.warning("middleware %s is not used because it requires a package for ASGI", name)
        elif is_asgi(middleware):
            log.warning("middleware %s is ASGI middleware, which is not supported", name)
        else:
            usable.append(middleware)
    return usable


def load_middleware(name: str) -> WsgiWrapper | None:
    """Imports a class or function, named MODULE.NAME.

    Returns None where its module needs a package that serves ASGI and is not installed here.

    Raises:
        ConfigError: It cannot be imported, or is no class or function.
    """
    module_name, _, attribute = name.rpartition(".")
    if not module_name:
        raise ConfigError(f"setting middleware: {name!r} must have the form MODULE.NAME")
    try:
        middleware = getattr(import_module(module_name), attribute)
    except Exception as error:  # what the module raises
        if isinstance(error, ModuleNotFoundError) and error.name in ASGI_PACKAGES:
            return None
        raise ConfigError(
            f"setting middleware: cannot import {name}: {type(error).__name__}: {error}"
        ) from None
    if not (inspect.isclass(middleware) or inspect.isfunction(middleware)):
        raise ConfigError(
            f"setting middleware: Invalid middleware {name}. Must be a function or a class."
        )
    return cast("WsgiWrapper", middleware)


def is_asgi(middleware: Callable[..., object]) -> bool:
    """Returns whether it is an ASGI class, or a coroutine function as FastAPI takes it."""
    if inspect.isclass(middleware):
        return inspect.iscoroutinefunction(inspect.getattr_static(middleware, "__call__", None))
    return inspect.iscoroutinefunction(middleware)
