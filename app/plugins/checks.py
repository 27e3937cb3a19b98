"""Checks of what hooks give: functions around hooks that raise TypeError or ValueError for nonsense.

The errors are the plugin's: `app.plugins.guard` counts them, and answers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from random import Random
from types import MappingProxyType
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from app.engine.batch import Batch
from app.engine.reply import Reply
from app.engine.request import EngineRequest, ScriptedReply
from app.engine.step_cost import CostModel
from app.faults.fault import DAMAGE, Fault
from app.faults.injector import FaultSource
from app.faults.script import RequestFacts
from app.http.context import RequestContext
from app.http.errors import ApiError
from app.http.response import Response
from app.http.route import Handler, Route
from app.metrics.exposition import Families
from app.middleware.stack import Middleware
from app.plugins.hooks import FaultHook, LengthHook, MetricsHook, ReplyHook
from app.simulated.modes import LengthSource, ReplySource

Worded = Callable[[EngineRequest, ScriptedReply], Reply]
"""Makes tokens of words."""
LONGEST_WAIT_S = 1e9
"""Longest wait that a plugin may ask for, in seconds: about 30 years, and far below overflow."""


def _is_list_of(kind: type) -> Callable[[object], bool]:
    return lambda given: isinstance(given, Sequence) and all(isinstance(one, kind) for one in given)


FORMS: Mapping[str, tuple[str, Callable[[object], bool]]] = MappingProxyType(
    {
        **dict.fromkeys(("reply", "length", "fault", "metrics"), ("a function", callable)),
        "step_cost": ("a CostModel", lambda given: callable(getattr(given, "seconds", None))),
        "middleware": (
            "a Middleware, or a list of some",
            lambda given: isinstance(given, Middleware) or _is_list_of(Middleware)(given),
        ),
        "routes": ("a list of Routes", _is_list_of(Route)),
        "routing": ("a mapping of policies", lambda given: isinstance(given, Mapping)),
    }
)
"""Form of what each hook gives at the start, besides None: in words, and as a test."""


def reply(hook: ReplyHook, worded: Worded) -> ReplySource:
    """Source of replies; a text becomes a `ScriptedReply`, and `worded` its tokens."""

    def source(request: EngineRequest, rng: Random) -> Reply | None:
        script = _script(hook(request, rng))
        return None if script is None else worded(request, script)

    return source


def _script(given: object) -> ScriptedReply | None:
    if given is None:
        return None
    if isinstance(given, str):
        return ScriptedReply(text=given)
    script = msgspec.convert(msgspec.to_builtins(_instance(given, ScriptedReply)), ScriptedReply)
    waits = (script.first_token_s, script.per_token_s, *script.before.values())
    if not all(0 <= wait <= LONGEST_WAIT_S for wait in waits):
        raise ValueError("gave a wait that is negative, or no number of seconds")
    for call in script.calls:
        msgspec.json.decode(call.arguments, type=dict[str, object])
    return None if script.passes else script


def length(hook: LengthHook) -> LengthSource:
    """Source of lengths, in tokens."""

    def source(request: EngineRequest, rng: Random) -> int | None:
        tokens = hook(request, rng)
        if isinstance(tokens, bool):
            raise TypeError("gave bool, not a number of tokens")
        return None if tokens is None else _instance(tokens, int)

    return source


def fault(hook: FaultHook, plugin: str) -> FaultSource:
    """Source of faults; a fault without a name has the plugin's."""

    def source(facts: RequestFacts) -> Fault | None:
        given = hook(facts)
        if given is None:
            return None
        found: Fault = _instance(given, Fault)
        _instance(found.error, ApiError | None)
        if found.damage is not None and not isinstance(found.damage, DAMAGE):
            raise TypeError("the damage of its Fault is none of config.fault_rules")
        sendable(found.headers)
        if not all(isinstance(token, int) and 0 <= wait < LONGEST_WAIT_S for token, wait in found.delays):
            raise ValueError("the delays of its Fault are not (token, seconds)")
        is_named = found.name or not (found.error or found.damage or found.delays)
        return found if is_named else found.named(plugin)

    return source


def step_seconds(cost: CostModel) -> Callable[[Batch[Any], float, bool], float]:
    """Function for the seconds of a step: finite, and at least 0."""

    def seconds(batch: Batch[Any], start_s: float, idle: bool) -> float:
        given = float(cost.seconds(batch, start_s, idle))
        if not isfinite(given) or given < 0:
            raise ValueError(f"a step cannot cost {given} s")
        return given

    return seconds


def families(hook: MetricsHook, plugin: str) -> Families:
    """Text of metric families; each is named after the plugin."""
    prefix = plugin.replace("-", "_")

    def text() -> str:
        given = hook()
        for family in text_string_to_metric_families(given):
            if family.name != prefix and not family.name.startswith(f"{prefix}_"):
                raise ValueError(f"family {family.name!r} must begin with {prefix}_")
        return given if given.endswith("\n") or not given else f"{given}\n"

    return text


def handler(handle: Handler) -> Handler:
    """Handler of a route."""

    def handled(context: RequestContext) -> Response:
        response: Response = _instance(handle(context), Response)
        sendable(response.headers)
        return response

    return handled


def beginning(middleware: Middleware) -> Callable[[RequestContext], Response | None]:
    """`begin` of a middleware."""
    return lambda context: _instance(middleware.begin(context), Response | None)


def ending(middleware: Middleware) -> Callable[[RequestContext, Response], None]:
    """`end` of a middleware; the headers of a response stay as they were where it fails."""

    def ended(context: RequestContext, response: Response) -> None:
        before = response.headers
        response.headers = dict(before)
        try:
            middleware.end(context, response)
            sendable(response.headers)
        except BaseException:
            response.headers = before
            raise

    return ended


def sendable(headers: Mapping[str, str]) -> None:
    """Raises ValueError for a header that cannot be sent."""
    for name, value in headers.items():
        text = f"{name}{value}" if isinstance(name, str) and isinstance(value, str) else None
        if text is None or not text.isprintable() or not text.isascii():
            raise ValueError(f"header {name!r} has a value that cannot be sent")


def _instance(given: Any, kind: Any) -> Any:
    """Returns `given`; TypeError where it is none of `kind`, a class or a union of classes."""
    if not isinstance(given, kind):
        raise TypeError(f"gave {type(given).__name__}, not {getattr(kind, '__name__', kind)}")
    return given
