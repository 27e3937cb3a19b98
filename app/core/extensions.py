"""The contract between the core and its extensions, and the list of built-in extensions.

An extension is a package of `app.extensions` whose `EXTENSION` is a subclass of `Extension`. The
package imports little: it is imported by every server, to ask whether the settings enable it. What
an enabled extension needs beyond that is imported by its methods. All hooks are called once, while
the application is built, so no request passes through this module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from app.base import Bounded
    from app.base.metrics.instruments import Families
    from app.engine.core.lifecycle import Operations, WeightUpdates
    from app.serving.api.pipeline import RequestPipeline
    from app.serving.flask.application import BackgroundService
    from app.serving.http.route import Route
    from config import Settings
    from config.settings import ServerSettings
    from config.validation import LiveSettings

PACKAGE = "app.extensions"
BUILT_IN = (
    "devmode",
    "label_reads",
    "openapi",
)
"""Names of the built-in extensions. Their routes are added in this order.

`openapi` is the last one: it describes the routes of all others.
"""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """The parts of one rank's server that extensions may use."""

    settings: Settings
    """The settings at the start."""
    live: LiveSettings
    """The settings in force, with a subscription to their changes."""
    server: ServerSettings
    """The server settings of this rank, with the rank's port."""
    pipeline: RequestPipeline
    """Validates requests for generation, and hands them to the engine."""
    lifecycle: Operations
    """Sleep, pause and cache resets of the engine."""
    weights: WeightUpdates
    """The version of the weights, and the updates by a trainer."""
    routes: Callable[[], Iterable[Route]]
    """Returns the routes of the application; complete when the application is built."""


class Extension:
    """One optional feature. Each method has a default, so that a small extension overrides one.

    Example of an extension with one route::

        class Uptime(Extension):
            name = "uptime"

            def routes(self) -> Mapping[str, Sequence[Route]]:
                return {"uptime": [get("/uptime", self._uptime)]}
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()
    """Names of the extensions that this one imports."""

    def __init__(self, parts: ServerParts) -> None:
        self.parts = parts

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Returns whether a server with `settings` has this extension."""
        return True

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of each Flask blueprint, by the blueprint's name."""
        return {}

    def services(self) -> Sequence[BackgroundService]:
        """Returns background tasks, which start and close with the worker."""
        return ()

    def metrics(self) -> Sequence[Families]:
        """Returns functions that render metric families in Prometheus' text format."""
        return ()

    def caches(self) -> Mapping[str, Bounded]:
        """Returns bounded containers for GET /admin/memory, by name."""
        return {}


def enabled_extensions(settings: Settings) -> list[type[Extension]]:
    """Returns the built-in extensions that are present and enabled, in the order of `BUILT_IN`.

    A package whose folder was deleted is left out. So is, with a warning, an extension that
    requires it.
    """
    present = {name for name in BUILT_IN if find_spec(f"{PACKAGE}.{name}") is not None}
    enabled = []
    for name in BUILT_IN:
        if name not in present:
            continue
        extension: type[Extension] = import_module(f"{PACKAGE}.{name}").EXTENSION
        missing = [required for required in extension.requires if required not in present]
        if missing:
            log.warning("extension %s is off: it requires %s", name, ", ".join(missing))
        elif extension.is_enabled(settings):
            enabled.append(extension)
    return enabled
