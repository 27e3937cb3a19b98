"""Replies that a script has decided, as tokens: thoughts, text, then tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from app.engine.outputs import Finish, Part
from app.engine.reply import LENGTH, STOP, Reply, joined
from app.engine.request import EngineRequest, ScriptedCall, ScriptedReply
from app.simulated.calls import CallReplies, written
from app.simulated.endings import stopped
from app.tokenization import Tokenizer

REASONING = Part("reasoning")
THOUGHTS = "<think>\n{}\n</think>\n\n"
"""How models mark up what they think."""


class ScriptedReplies:
    """Makes replies of what scripts say, each of as many tokens as its text has."""

    def __init__(self, tokenizer: Tokenizer, calls: CallReplies) -> None:
        self._tokenizer = tokenizer
        self._calls = calls

    def reply(self, request: EngineRequest, script: ScriptedReply) -> Reply:
        """The reply; like any other it ends at the limit of tokens and at a stop string."""
        if not script.in_parts:
            reply = self._told(request, raw_text(script))
        else:
            reply = self._in_parts(request, script)
        reply = reply.cut(request.max_tokens)
        if script.finish is not None and reply.finish == STOP:
            reply.finish = Finish(script.finish)
        return reply

    def _in_parts(self, request: EngineRequest, script: ScriptedReply) -> Reply:
        """What does not fit into the limit is not begun."""
        made: list[Callable[[EngineRequest], Reply]] = []
        if script.reasoning:
            made.append(lambda request: as_thoughts(self._told(request, script.reasoning)))
        if script.text or not script.calls:
            made.append(lambda request: self._told(request, script.text))
        if script.calls:
            made.append(lambda request: self._called(script.calls, request.max_tokens))
        reply, room = Reply([], [], STOP), request.max_tokens
        for number, make in enumerate(made):
            if number and room <= 0:
                reply.finish = LENGTH
                break
            part = make(replace(request, max_tokens=room)).cut(room)
            reply = joined(reply, part) if reply.ids else part
            room -= len(part.ids)
            if part.finish != STOP:
                break
        return reply

    def _told(self, request: EngineRequest, text: str) -> Reply:
        ids = self._tokenizer.encode(text)
        reply = Reply(self._tokenizer.pieces(ids), ids, STOP).cut(request.max_tokens)
        return stopped(reply, request) if request.stop or request.stop_token_ids else reply

    def _called(self, calls: Sequence[ScriptedCall], most: int) -> Reply:
        return self._calls.marked_up(written(calls), most)


def as_thoughts(reply: Reply) -> Reply:
    """Returns a reply of text as what the model thinks."""
    return replace(reply, spans=[(len(reply.texts), REASONING)])


def raw_text(script: ScriptedReply) -> str:
    """All of a reply as the model writes it, before anything is told apart."""
    thoughts = THOUGHTS.format(script.reasoning) if script.reasoning else ""
    return thoughts + script.text + (written(script.calls).text if script.calls else "")


def delays_of(script: ScriptedReply, tokens: int) -> list[tuple[int, float]]:
    """The waits of a script before each token of a reply that has so many."""
    waits = dict.fromkeys(range(1, tokens), script.per_token_s) if script.per_token_s else {}
    if script.first_token_s:
        waits[0] = script.first_token_s
    for token, seconds in script.before.items():
        waits[token] = waits.get(token, 0.0) + seconds
    return list(waits.items())
