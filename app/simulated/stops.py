"""Where a reply stops, and how its text leaves while a stop may still come.

Rules of vLLM's detokenizer: a stop string counts once more than `min_tokens` tokens are out; the
one that is complete first wins; its token is the last one; the text ends before the stop string
unless it is to be included. While no stop has come, as many characters are held back as could still
turn out to be its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from app.engine.outputs import Finish
from app.engine.reply import Script
from app.engine.request import Generation


def stopped(script: Script, generation: Generation) -> Script:
    """`script` as the stop conditions of `generation` leave it."""
    if generation.stop_token_ids:
        script = _stopped_by_token(script, generation)
    if generation.stop:
        script = _stopped_by_text(script, generation)
    return script


def _stopped_by_token(script: Script, generation: Generation) -> Script:
    for i in range(generation.min_tokens, len(script.ids)):
        token_id = script.ids[i]
        if token_id in generation.stop_token_ids:
            last = script.texts[i] if generation.include_stop else ""
            return Script([*script.texts[:i], last], script.ids[: i + 1], Finish("stop", token_id))
    return script


def _stopped_by_text(script: Script, generation: Generation) -> Script:
    text = "".join(script.texts)
    offsets = [0, *accumulate(map(len, script.texts))]
    found = _first_stop(text, offsets, generation)
    finish, count = script.finish, len(script.ids)
    if found is not None:
        stop, start = found
        end = start + len(stop)
        count = next(i for i in range(1, len(offsets)) if offsets[i] >= end)
        text = text[: end if generation.include_stop else start]
        finish = Finish("stop", stop)
    held = 0 if generation.include_stop else max(map(len, generation.stop)) - 1
    return Script(_held_back(text, offsets[: count + 1], held), script.ids[:count], finish)


def _first_stop(text: str, offsets: Sequence[int], generation: Generation) -> tuple[str, int] | None:
    """The stop string that is complete first, and where it starts; None when none occurs.

    A stop that ends within the first `min_tokens` tokens does not count.
    """
    if generation.min_tokens >= len(offsets) - 1:
        return None
    protected = offsets[generation.min_tokens]
    found = [
        (start + len(stop), i, stop, start)
        for i, stop in enumerate(generation.stop)
        if (start := text.find(stop, max(0, protected + 1 - len(stop)))) >= 0
    ]
    if not found:
        return None
    _, _, stop, start = min(found)
    return stop, start


def _held_back(text: str, offsets: Sequence[int], held: int) -> list[str]:
    """Cut `text` into what leaves with each token: `held` characters late, all with the last one."""
    ends = [max(0, min(end - held, len(text))) for end in offsets]
    ends[0], ends[-1] = 0, len(text)
    return [text[start:end] for start, end in zip(ends, ends[1:], strict=False)]
