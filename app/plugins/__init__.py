"""Public names for plugins (docs/plugins.md), stable within one version of the hooks.

Importing this package loads pluggy, so a server without plugins never imports it.
"""

from pluggy import HookimplMarker

from app.engine.core.batch import Batch
from app.engine.core.request import EngineRequest, ScriptedReply
from app.engine.core.step_loop import CostModel, StepCost
from app.lab.fleet.routing import Incoming, Policy, PolicyMaker, Scores
from app.plugins.hooks import PROJECT, FaultHook, LengthHook, MetricsHook, PluginHost, ReplyHook, off_loop
from app.serving.faults.fault import Fault, RequestFacts
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, get, post
from app.serving.middleware.stack import Middleware
from config.declaration import About, Count, Duration, NotNegative, Percent, Section
from config.plugins import API
from config.profile import Profile

__all__ = [
    "API",
    "About",
    "ApiError",
    "Batch",
    "CostModel",
    "Count",
    "Duration",
    "EngineRequest",
    "Fault",
    "FaultHook",
    "Incoming",
    "LengthHook",
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

hookimpl = HookimplMarker(PROJECT)
"""Marks a plugin's function as the hook of the same name."""
