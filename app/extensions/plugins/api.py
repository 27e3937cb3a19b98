"""Public names for plugins (docs/plugins.md), version 2; stable within one version.

A plugin is an extension of a third party: a module with `API = 2` and `EXTENSION`, a subclass of
`Plugin`. The server makes one instance and calls each hook once, at its start. The functions that a
hook returns run in the server's event loop, and must return within milliseconds, unless they are
wrapped in `off_loop`.
"""

from collections.abc import Callable, Mapping
from contextvars import copy_context
from random import Random
from typing import Any, ParamSpec, TypeVar

from app.core.api.fault import RequestFacts
from app.core.base.clock.pause import call_off_hub
from app.core.engine.batch import Batch
from app.core.engine.profile import Profile
from app.core.engine.request import EngineRequest, ScriptedReply
from app.core.engine.step_cost import CostModel, StepCost
from app.core.extensions import Extension, Position, ServerParts
from app.core.server.http.context import RequestContext, current_request
from app.core.server.http.errors import ApiError
from app.core.server.http.fault import Fault
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, get, post
from app.core.server.middleware.stack import Middleware
from app.extensions.plugins.policies import (
    AutoscalerStart,
    Decide,
    Incoming,
    Look,
    Policy,
    PolicyMaker,
    Scores,
)
from config.declaration import About, Count, Duration, NotNegative, Percent, Section
from config.plugin_modules import API
from config.settings import Settings as AllSettings

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
    "Incoming",
    "Look",
    "Middleware",
    "NotNegative",
    "Percent",
    "Plugin",
    "Policy",
    "PolicyMaker",
    "Position",
    "Profile",
    "RequestContext",
    "RequestFacts",
    "Response",
    "Route",
    "Scores",
    "ScriptedReply",
    "Section",
    "ServerParts",
    "StepCost",
    "get",
    "json_response",
    "off_loop",
    "post",
]

P = ParamSpec("P")
T = TypeVar("T")


class Plugin(Extension):
    """An extension of a third party. `name` is made of a-z, digits and single dashes.

    Several plugins are asked in the order of the setting, installed ones first. The first
    reply, length, step cost and fault other than None decides.

    Example of a plugin with one hook::

        class Shout(Plugin):
            name = "shout"

            def reply(self):
                return self._shout

            def _shout(self, request, rng):
                return request.echo_text.upper()


        API = 2
        EXTENSION = Shout
    """

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self.rng: Random = parts.streams(f"plugin {self.name}")
        """Random numbers for this plugin alone, which repeat with the setting `seed`."""

    @property
    def settings(self) -> Any:
        """The settings of the plugin in force, an instance of `Settings`."""
        assert self.Settings is not None
        return self.all_settings.section(self.Settings)

    @property
    def all_settings(self) -> AllSettings:
        """The settings of the server in force."""
        return self.parts.live.current

    def now(self) -> float:
        """Returns monotonic seconds."""
        return self.parts.clock.now()

    def request(self) -> RequestContext | None:
        """Returns the HTTP request of the current greenlet; None outside of a request."""
        return current_request.get()

    def routing_policies(self) -> Mapping[str, PolicyMaker]:
        """Returns routing policies of `understudy fleet`, by name."""
        return {}

    def autoscalers(self) -> Mapping[str, AutoscalerStart]:
        """Returns autoscaling policies of `understudy simulate --autoscale`, by name."""
        return {}


def off_loop(function: Callable[P, T]) -> Callable[P, T]:
    """Wraps `function` to run in a native thread: a blocking call delays only its own request.

    Only for replies and lengths: the event loop itself calls middleware and step costs, and cannot
    wait.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        context = copy_context()
        return call_off_hub(lambda: context.run(function, *args, **kwargs))

    return call
