"""What a plugin knows of the process that it works in."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from random import Random
from typing import Any, ParamSpec, TypeVar

from app.clock.pause import call_off_hub
from app.http.context import RequestContext, current_request
from config.settings import Plugin, Settings

P = ParamSpec("P")
T = TypeVar("T")


class PluginHost:
    """Handed to all hooks of one plugin, in every process anew.

    `now` gives monotonic seconds (those of the virtual clock where time is virtual), `rng` is a stream of
    randomness of the plugin's own: a server with a seed repeats itself as long as nothing else is asked.
    """

    def __init__(
        self, plugin: Plugin, current: Callable[[], Settings], rng: Random, now: Callable[[], float]
    ) -> None:
        self.name = plugin.name
        self.rng = rng
        self.now = now
        self._group = plugin.group
        self._has_settings = plugin.settings is not None
        self._current = current
        self._made: dict[Callable[[PluginHost], Any], Any] = {}

    @property
    def settings(self) -> Any:
        """The plugin's own settings of now, an instance of its `Settings`; None without such a class."""
        return getattr(self._current(), self._group) if self._has_settings else None

    @property
    def all_settings(self) -> Settings:
        """All settings of now."""
        return self._current()

    def one(self, make: Callable[[PluginHost], T]) -> T:
        """What `make` gives for this host: made when it is first asked for, the same for all hooks."""
        if make not in self._made:
            self._made[make] = make(self)
        made: T = self._made[make]
        return made

    def request(self) -> RequestContext | None:
        """The HTTP request that is served here and now; None where none is."""
        return current_request.get()


def off_loop(function: Callable[P, T]) -> Callable[P, T]:
    """`function` in a native thread: it may block there, and only its own request waits.

    For replies and lengths. Where an event loop calls (middleware, step costs) nothing can be waited for.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        context = copy_context()
        return call_off_hub(lambda: context.run(function, *args, **kwargs))

    return call
