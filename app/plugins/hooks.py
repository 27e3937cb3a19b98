"""The hooks, version 1. Each is called once, when a server or a command starts, for what is called later.

So nothing of pluggy is on the way of a request. An implementation names those of the arguments that it needs;
what it gives may be None, where it has nothing to do with the settings of this start. What is called later
runs in the server's one event loop: it must return within milliseconds, unless it says `off_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from random import Random
from typing import Any, ParamSpec, TypeVar

from pluggy import HookspecMarker

from app.clock.pause import call_off_hub
from app.engine.request import EngineRequest, ScriptedReply
from app.engine.step_cost import CostModel
from app.faults.fault import Fault
from app.faults.script import RequestFacts
from app.fleet.routing import PolicyMaker
from app.http.context import RequestContext, current_request
from app.http.route import Route
from app.middleware.stack import Middleware
from config.profile import Profile
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


PROJECT = "understudy"
hookspec = HookspecMarker(PROJECT)


ReplyHook = Callable[[EngineRequest, Random], str | ScriptedReply | None]
"""Decides the reply: a text, or a text with thoughts, tool calls and pace; None leaves it to the next plugin.

`rng` repeats itself with the request's seed. An ApiError refuses the request; another error counts as None.
"""
LengthHook = Callable[[EngineRequest, Random], int | None]
"""Decides the length of replies of mode `random`, in tokens; None leaves it to the next plugin."""
FaultHook = Callable[[RequestFacts], Fault | None]
"""What goes wrong with a request on purpose; None leaves it to the next plugin, then to rules and chance."""
MetricsHook = Callable[[], str]
"""Families as text in Prometheus' format 0.0.4; their names begin with the plugin's, `_` for `-`."""


@hookspec
def reply(host: PluginHost) -> ReplyHook | None:
    """What is said."""


@hookspec
def length(host: PluginHost) -> LengthHook | None:
    """How many tokens a reply has."""


@hookspec
def step_cost(host: PluginHost, profile: Profile) -> CostModel | None:
    """What a step costs, in seconds: of `timing: steps`, and of each engine of `python -m app simulate`."""


@hookspec
def fault(host: PluginHost) -> FaultHook | None:
    """What goes wrong on purpose."""


@hookspec
def middleware(host: PluginHost) -> Middleware | Sequence[Middleware] | None:
    """What is done around every request that keys and rate limits let pass."""


@hookspec
def routes(host: PluginHost) -> Sequence[Route] | None:
    """Routes, served as a blueprint. Below `/admin` they need the admin key, where there is one."""


@hookspec
def metrics(host: PluginHost) -> MetricsHook | None:
    """Metric families."""


@hookspec
def routing(host: PluginHost) -> Mapping[str, PolicyMaker] | None:
    """Routing policies of `python -m app fleet`, by name."""


HOOKS = ("reply", "length", "step_cost", "fault", "middleware", "routes", "metrics", "routing")
