"""Where a reply ends before its length: the stop strings and stop tokens that cut it.

Stops follow the rules of vLLM's detokenizer: a stop string counts once more than `min_tokens` tokens are
out; the one that is complete first wins; its token is the last one; the text ends before the stop string
unless it is to be included. While no stop has come, as many characters are held back as could still turn
out to be its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from app.clock.pause import Slices
from app.engine.outputs import Finish
from app.engine.reply import Reply
from app.engine.request import EngineRequest

SEARCHED_IN_A_STEP = 20_000
"""Characters that are searched for a stop string in a step of work, about 10 us."""
PART_TOKENS, PART_STEPS = 2048, 100
"""Tokens of a long reply whose texts are cut in one go, and the steps that it takes."""
TOKENS_IN_A_STEP = 100
"""Tokens whose texts are drawn, or joined, in a step."""


def stopped(reply: Reply, request: EngineRequest) -> Reply:
    """`reply` as the stop conditions of `request` leave it."""
    if request.stop_token_ids:
        reply = _stopped_by_token(reply, request)
    if request.stop:
        reply = _stopped_by_text(reply, request)
    return reply


def _stopped_by_token(reply: Reply, request: EngineRequest) -> Reply:
    for i in range(request.min_tokens, len(reply.ids)):
        token_id = reply.ids[i]
        if token_id in request.stop_token_ids:
            last = reply.texts[i] if request.include_stop else ""
            return Reply([*reply.texts[:i], last], reply.ids[: i + 1], Finish("stop", token_id))
    return reply


def _stopped_by_text(reply: Reply, request: EngineRequest) -> Reply:
    slices = Slices()
    slices.spend(len(reply.texts) // TOKENS_IN_A_STEP)  # making it took that long
    text = "".join(reply.texts)
    offsets = [0, *accumulate(map(len, reply.texts))]
    slices.spend(len(reply.texts) // TOKENS_IN_A_STEP)
    found = _first_stop(text, offsets, request, slices)
    finish, count = reply.finish, len(reply.ids)
    if found is not None:
        stop, start = found
        end = start + len(stop)
        count = next(i for i in range(1, len(offsets)) if offsets[i] >= end)
        text = text[: end if request.include_stop else start]
        finish = Finish("stop", stop)
    held = 0 if request.include_stop else max(map(len, request.stop)) - 1
    texts: list[str] = []
    for begin in range(0, count, PART_TOKENS):
        end = min(begin + PART_TOKENS, count)
        texts += _held_back(text, offsets[begin : end + 1], held, last=end == count)
        slices.spend(PART_STEPS)
    return Reply(texts, reply.ids[:count], finish)


def _first_stop(
    text: str, offsets: Sequence[int], request: EngineRequest, slices: Slices
) -> tuple[str, int] | None:
    """The stop string that is complete first, and where it starts; None when none occurs.

    A stop that ends within the first `min_tokens` tokens does not count.
    """
    if request.min_tokens >= len(offsets) - 1:
        return None
    protected = offsets[request.min_tokens]
    first: tuple[int, str, int] | None = None
    for stop in request.stop:
        slices.spend(1 + len(text) // SEARCHED_IN_A_STEP)
        start = text.find(stop, max(0, protected + 1 - len(stop)))
        if start >= 0 and (first is None or start + len(stop) < first[0]):
            first = start + len(stop), stop, start
    return None if first is None else first[1:]


def _held_back(text: str, offsets: Sequence[int], held: int, last: bool) -> list[str]:
    """What leaves of `text` with the tokens between `offsets`: `held` characters late, all with the last."""
    size = len(text)
    ends = [max(0, min(end - held, size)) for end in offsets]
    if last:
        ends[-1] = size
    return [text[start:end] for start, end in pairwise(ends)]
