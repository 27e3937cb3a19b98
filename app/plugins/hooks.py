"""The hooks, version 1. Each is called once, when a server or a command starts, for what is called later.

So nothing of pluggy is on the way of a request. An implementation names those of the arguments that it needs;
what it gives may be None, where it has nothing to do with the settings of this start. What is called later
runs in the server's one event loop: it must return within milliseconds, unless it says `off_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from pluggy import HookspecMarker

from app.engine.request import EngineRequest, ScriptedReply
from app.engine.step_cost import CostModel
from app.faults.fault import Fault
from app.faults.script import RequestFacts
from app.fleet.routing import PolicyMaker
from app.http.route import Route
from app.middleware.stack import Middleware
from app.plugins.host import PluginHost
from config.profile import Profile

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
