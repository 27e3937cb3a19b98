"""Public names for plugins (docs/plugins.md), and the hooks, version 1; stable within one version.

Each hook is called once at the start, and returns objects for later calls. Requests therefore never
pass through pluggy. An implementation declares only the arguments that it needs. A hook returns
None when these settings do not need the plugin. The returned objects run in the server's event
loop, and must return within milliseconds, unless wrapped in `off_loop`. Importing this package
loads pluggy, so a server without plugins never imports it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from random import Random
from typing import Any, ParamSpec, TypeVar

from pluggy import HookimplMarker, HookspecMarker

from app.base.clock.pause import call_off_hub
from app.engine.core.batch import Batch
from app.engine.core.request import EngineRequest, ScriptedReply
from app.engine.core.step_loop import CostModel, StepCost
from app.lab.fleet.routing import Incoming, Policy, PolicyMaker, Scores
from app.lab.load.autoscale import AutoscalerStart, Decide, Look
from app.serving.api.fault import Fault, RequestFacts
from app.serving.http.context import RequestContext, current_request
from app.serving.http.errors import ApiError
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, get, post
from app.serving.middleware.stack import Middleware
from config.declaration import About, Count, Duration, NotNegative, Percent, Section
from config.plugins import API
from config.profile import Profile
from config.settings import Plugin, Settings

__all__ = [
    "API",
    "About",
    "ApiError",
    "AutoscalerStart",
    "Batch",
    "CostModel",
    "Count",
    "Decide",
    "Duration",
    "EngineRequest",
    "Fault",
    "FaultHook",
    "Incoming",
    "LengthHook",
    "Look",
    "MetricsHook",
    "Middleware",
    "NotNegative",
    "Percent",
    "PluginHost",
    "Policy",
    "PolicyMaker",
    "Profile",
    "ReplyHook",
    "RequestContext",
    "RequestFacts",
    "Response",
    "Route",
    "Scores",
    "ScriptedReply",
    "Section",
    "StepCost",
    "get",
    "hookimpl",
    "json_response",
    "off_loop",
    "post",
]

P = ParamSpec("P")
T = TypeVar("T")
PROJECT = "understudy"
hookspec = HookspecMarker(PROJECT)
hookimpl = HookimplMarker(PROJECT)
"""Marks a plugin's function as the hook of the same name."""


class PluginHost:
    """Argument of all hooks of one plugin; one object for each process.

    `now` gives monotonic seconds, of the virtual clock where time is virtual. `rng` is a random
    stream for this plugin alone: with a seed, the same requests draw the same numbers.
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
        """The plugin's current settings, an instance of its `Settings`; None without such a class."""
        return getattr(self._current(), self._group) if self._has_settings else None

    @property
    def all_settings(self) -> Settings:
        return self._current()

    def one(self, make: "Callable[[PluginHost], T]") -> T:
        """Returns the result of `make(self)`, computed once and shared by all hooks."""
        if make not in self._made:
            self._made[make] = make(self)
        made: T = self._made[make]
        return made

    def request(self) -> RequestContext | None:
        """The HTTP request of the current greenlet; None outside a request."""
        return current_request.get()


def off_loop(function: Callable[P, T]) -> Callable[P, T]:
    """Wraps `function` to run in a native thread: a blocking call delays only its own request.

    Only for replies and lengths: the event loop itself calls middleware and step costs, and cannot
    wait.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        context = copy_context()
        return call_off_hub(lambda: context.run(function, *args, **kwargs))

    return call


ReplyHook = Callable[[EngineRequest, Random], str | ScriptedReply | None]
"""Returns the reply: a text, or a text with thoughts, tool calls and pace; None defers to the next
plugin.

The request's seed determines `rng`. An ApiError refuses the request; any other error counts as
None. """
LengthHook = Callable[[EngineRequest, Random], int | None]
"""Returns the length of a reply of mode `random`, in tokens; None defers to the next plugin."""
FaultHook = Callable[[RequestFacts], Fault | None]
"""Returns the fault for a request; None defers to the next plugin, then to rules and chance."""
MetricsHook = Callable[[], str]
"""Returns metric families in Prometheus' text format 0.0.4.

Names begin with the plugin's, `_` for `-`.
"""


@hookspec
def reply(host: PluginHost) -> ReplyHook | None:
    """Replies of the simulated model."""


@hookspec
def length(host: PluginHost) -> LengthHook | None:
    """Lengths of replies, in tokens."""


@hookspec
def step_cost(host: PluginHost, profile: Profile) -> CostModel | None:
    """Costs of a step, in seconds:

    for `timing: steps`, and for each engine of `python -m app simulate`.
    """


@hookspec
def fault(host: PluginHost) -> FaultHook | None:
    """Faults injected into requests."""


@hookspec
def middleware(host: PluginHost) -> Middleware | Sequence[Middleware] | None:
    """Middleware around each request that keys and rate limits admit."""


@hookspec
def routes(host: PluginHost) -> Sequence[Route] | None:
    """Routes, served as a blueprint. A path below `/admin` needs the admin key, if one is set."""


@hookspec
def metrics(host: PluginHost) -> MetricsHook | None:
    """Metric families."""


@hookspec
def routing(host: PluginHost) -> Mapping[str, PolicyMaker] | None:
    """Routing policies of `python -m app fleet`, by name."""


@hookspec
def autoscaling(host: PluginHost) -> Mapping[str, AutoscalerStart] | None:
    """Autoscaling policies of `python -m app simulate --autoscale`, by name."""


HOOKS = (
    "reply",
    "length",
    "step_cost",
    "fault",
    "middleware",
    "routes",
    "metrics",
    "routing",
    "autoscaling",
)
