"""Applies a request's stop conditions to a reply.

Stops follow the rules of vLLM's detokenizer. A stop string counts once more than `min_tokens`
tokens are emitted. The stop that is complete first wins, and its token is the last one. The text
ends before the stop string unless the request includes it. Until a stop comes, as many characters
are held back as could begin one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise

from app.core.base.clock.pause import Pace
from app.core.engine.outputs import Finish
from app.core.engine.request import EngineRequest, Reply

PART_TOKENS = 2048
"""Tokens of a long reply that are cut between two looks at the clock."""


def stopped(reply: Reply, request: EngineRequest) -> Reply:
    """Returns `reply` cut by the stop conditions of `request`."""
    if request.stop_token_ids:
        for place in range(request.min_tokens, len(reply.ids)):
            token_id = reply.ids[place]
            if token_id in request.stop_token_ids:
                last = reply.texts[place] if request.include_stop else ""
                finish = Finish("stop", token_id)
                reply = Reply([*reply.texts[:place], last], reply.ids[: place + 1], finish)
                break
    if request.stop:
        return _stopped_by_text(reply, request)
    return reply


def _stopped_by_text(reply: Reply, request: EngineRequest) -> Reply:
    pause_if_due = Pace(time.monotonic)
    text = "".join(reply.texts)
    offsets = [0, *accumulate(map(len, reply.texts))]
    first_stop = _first_stop(text, offsets, request, pause_if_due)
    finish = reply.finish
    count = len(reply.ids)
    if first_stop is not None:
        stop, start = first_stop
        end = start + len(stop)
        count = next(place for place in range(1, len(offsets)) if offsets[place] >= end)
        text = text[:end] if request.include_stop else text[:start]
        finish = Finish("stop", stop)
    held = 0
    """Characters that are held back, as a stop string may begin with them."""
    if not request.include_stop:
        held = max(map(len, request.stop)) - 1
    texts: list[str] = []
    for begin in range(0, count, PART_TOKENS):
        end = min(begin + PART_TOKENS, count)
        ends = [max(0, min(offset - held, len(text))) for offset in offsets[begin : end + 1]]
        if end == count:  # the last token releases all held text
            ends[-1] = len(text)
        texts += [text[start:stop] for start, stop in pairwise(ends)]
        pause_if_due()
    return Reply(texts, reply.ids[:count], finish)


def _first_stop(
    text: str, offsets: Sequence[int], request: EngineRequest, pause_if_due: Pace
) -> tuple[str, int] | None:
    """Returns the first complete stop string beyond `min_tokens` tokens, and its start."""
    if request.min_tokens >= len(offsets) - 1:
        return None
    protected = offsets[request.min_tokens]
    first: tuple[int, str, int] | None = None
    for stop in request.stop:
        pause_if_due()
        start = text.find(stop, max(0, protected + 1 - len(stop)))
        if start >= 0 and (first is None or start + len(stop) < first[0]):
            first = start + len(stop), stop, start
    if first is None:
        return None
    return first[1:]
