"""Decides when a reply ends: by itself, a stop token, a repetition, its limit, or a stop string.

`ended` cuts a whole reply, as the simulated model writes it, and `append_end_of_text` ends one that
nothing cut. `end_of_tokens` decides after each token of an engine that computes.

Stops follow the rules of vLLM's scheduler and detokenizer. At one token, a stop string has
precedence, then a stop token, the limit, and a repetition. A stop string counts once more than
`min_tokens` tokens are emitted. The stop that is complete first wins, and its token is the last
one. The text ends before the stop string unless the request includes it. Until a stop comes, as
many characters are held back as could begin one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from app.core.base.clock.pause import paced
from app.core.engine.outputs import Finish
from app.core.engine.request import LENGTH, STOP, Reply
from app.core.engine.sampling import RepetitionDetection, Sampling

PART_TOKENS = 2048
"""Tokens of a long reply that are cut between two looks at the clock."""
REPETITION = Finish("repetition", "repetition_detected")


def ended(reply: Reply, sampling: Sampling) -> Reply:
    """Returns `reply`, cut where the request ends it. May pause."""
    if sampling.stop_token_ids or sampling.repetition_detection is not None:
        reply = _ended_by_token(reply, sampling)
    if sampling.stop:
        return _ended_by_text(reply, sampling)
    return reply


def append_end_of_text(reply: Reply, eos_token_id: int, max_tokens: int) -> None:
    """Appends the end-of-text token to a reply that stops by itself.

    A reply that has `max_tokens` already finishes with LENGTH instead.
    """
    finish = reply.finish
    if finish is not STOP and finish != STOP:
        return
    count = len(reply.ids)
    if count >= max_tokens:
        reply.finish = LENGTH
        return
    reply.texts = [*reply.texts, ""]
    reply.ids = [*reply.ids, eos_token_id]
    if reply.spans:
        reply.spans = [*reply.spans[:-1], (count + 1, reply.spans[-1][1])]


def end_of_tokens(ids: Sequence[int], max_tokens: int, sampling: Sampling) -> Finish | None:
    """Returns how the reply ends with its latest token, apart from stop tokens and strings."""
    if len(ids) >= max_tokens:
        return LENGTH
    detection = sampling.repetition_detection
    if detection is None or len(ids) < sampling.min_tokens:
        return None
    for size in _pattern_sizes(detection, len(ids)):
        repeated = size * (detection.min_count - 1)
        if ids[-repeated:] == ids[-repeated - size : -size]:
            return REPETITION
    return None


def _ended_by_token(reply: Reply, sampling: Sampling) -> Reply:
    ids = reply.ids
    end = len(ids)
    finish = reply.finish
    detection = sampling.repetition_detection
    if detection is not None:
        first_end = _first_repetition(ids, detection, sampling.min_tokens)
        if first_end is not None and (first_end < end or finish != LENGTH):
            end = first_end
            finish = REPETITION
    last_text = None
    for place in range(sampling.min_tokens, end):
        if ids[place] in sampling.stop_token_ids:
            end = place + 1
            finish = Finish("stop", ids[place])
            last_text = reply.texts[place] if sampling.include_stop_str_in_output else ""
            break
    texts = reply.texts[:end]
    if last_text is not None:
        texts = [*texts[:-1], last_text]
    return Reply(texts, ids[:end], finish)


def _pattern_sizes(detection: RepetitionDetection, tokens: int) -> range:
    """Returns the sizes of patterns that can have been repeated often enough."""
    if detection.max_pattern_size <= 0:
        return range(0)
    max_size = min(detection.max_pattern_size, tokens // detection.min_count)
    return range(max(1, detection.min_pattern_size), max_size + 1)


def _first_repetition(
    ids: Sequence[int], detection: RepetitionDetection, min_tokens: int
) -> int | None:
    """Returns the number of tokens up to the first repetition that ends the reply."""
    first_end: int | None = None
    end = len(ids)
    for size in paced(_pattern_sizes(detection, len(ids))):
        repeated = size * (detection.min_count - 1)
        run = 0
        """Consecutive tokens that equal the one a pattern earlier."""
        for place in range(size, end):
            run = run + 1 if ids[place] == ids[place - size] else 0
            if run >= repeated and place + 1 >= min_tokens:
                first_end = end = place + 1
                break
    return first_end


def _ended_by_text(reply: Reply, sampling: Sampling) -> Reply:
    text = "".join(reply.texts)
    offsets = [0, *accumulate(map(len, reply.texts))]
    first_stop = _first_stop(text, offsets, sampling)
    finish = reply.finish
    count = len(reply.ids)
    if first_stop is not None:
        stop, start = first_stop
        end = start + len(stop)
        count = next(place for place in range(1, len(offsets)) if offsets[place] >= end)
        text = text[:end] if sampling.include_stop_str_in_output else text[:start]
        finish = Finish("stop", stop)
    held = 0
    """Characters that are held back, as a stop string may begin with them."""
    if not sampling.include_stop_str_in_output:
        held = max(map(len, sampling.stop)) - 1
    texts: list[str] = []
    for begin in paced(range(0, count, PART_TOKENS)):
        end = min(begin + PART_TOKENS, count)
        ends = [max(0, min(offset - held, len(text))) for offset in offsets[begin : end + 1]]
        if end == count:  # the last token releases all held text
            ends[-1] = len(text)
        texts += [text[start:stop] for start, stop in pairwise(ends)]
    return Reply(texts, reply.ids[:count], finish)


def _first_stop(text: str, offsets: Sequence[int], sampling: Sampling) -> tuple[str, int] | None:
    """Returns the first complete stop string beyond `min_tokens` tokens, and its start."""
    if sampling.min_tokens >= len(offsets) - 1:
        return None
    protected = offsets[sampling.min_tokens]
    first: tuple[int, str, int] | None = None
    for stop in paced(sampling.stop):
        start = text.find(stop, max(0, protected + 1 - len(stop)))
        if start >= 0 and (first is None or start + len(stop) < first[0]):
            first = start + len(stop), stop, start
    if first is None:
        return None
    return first[1:]
