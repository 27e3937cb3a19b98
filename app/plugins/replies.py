"""What plugins say, as tokens: made under guard, so that a wrong reply is counted as the plugin's."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from app.engine.reply import Reply
from app.engine.request import EngineRequest, ScriptedReply
from app.plugins.guard import Guard, HookFailed
from app.plugins.hooks import LengthHook, ReplyHook
from app.simulated.modes import LengthSource, ReplySource

Worded = Callable[[EngineRequest, ScriptedReply], Reply]
LONGEST_WAIT_S = 1e9


def reply_source(hook: ReplyHook, guard: Guard, worded: Worded) -> ReplySource:
    """A source of replies that has nothing to say where the plugin fails; `worded` makes tokens of words."""

    def said(request: EngineRequest, rng: Random) -> Reply | None:
        script = as_script(hook(request, rng))
        return None if script is None else worded(request, script)

    def reply(request: EngineRequest, rng: Random) -> Reply | None:
        try:
            return guard.call(said, request, rng)
        except HookFailed:
            return None

    return reply


def as_script(said: object) -> ScriptedReply | None:
    """What a hook gave. TypeError or ValueError where it is no reply."""
    if said is None:
        return None
    if isinstance(said, str):
        return ScriptedReply(text=said)
    if not isinstance(said, ScriptedReply):
        raise TypeError(f"gave {type(said).__name__}, not a text, a ScriptedReply or None")
    script = msgspec.convert(msgspec.to_builtins(said), ScriptedReply)
    waits = (script.first_token_s, script.per_token_s, *script.before.values())
    if not all(0 <= wait <= LONGEST_WAIT_S for wait in waits):
        raise ValueError("gave a wait that is negative, or no number of seconds")
    for call in script.calls:
        msgspec.json.decode(call.arguments, type=dict[str, object])
    return None if script.passes else script


def length_source(hook: LengthHook, guard: Guard) -> LengthSource:
    """A source of lengths that leaves it to the next where the plugin fails."""

    def wanted(request: EngineRequest, rng: Random) -> int | None:
        tokens = hook(request, rng)
        if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool)):
            raise TypeError(f"gave {type(tokens).__name__}, not a number of tokens or None")
        return tokens

    def length(request: EngineRequest, rng: Random) -> int | None:
        try:
            return guard.call(wanted, request, rng)
        except HookFailed:
            return None

    return length
