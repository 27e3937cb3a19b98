"""Applies a request's stops and biases to a reply: its end, and its tokens.

Stops follow the rules of vLLM's detokenizer. A stop string counts once more than `min_tokens`
tokens are out. The stop that is complete first wins, and its token is the last one. The text ends
before the stop string unless the request includes it. Until a stop comes, as many characters are
held back as could begin one.

A reply's own token counts as chosen with a probability of 0.37 (see `own_logprob`), all others as
equally likely. So a bias of 100 decides, one of -100 forbids, and others shift the odds.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import exp
from random import Random

from app.base.clock.pause import Pace
from app.engine.core.outputs import Finish
from app.engine.core.request import STOP, EngineRequest, Reply
from app.engine.core.wire import Sampling
from app.text.base import Tokenizer

PART_TOKENS = 2048
"""Tokens of a long reply that are cut between two looks at the clock."""


def stopped(reply: Reply, request: EngineRequest) -> Reply:
    """Returns `reply` cut by the stop conditions of `request`."""
    for i in range(request.min_tokens, len(reply.ids)) if request.stop_token_ids else ():
        token_id = reply.ids[i]
        if token_id in request.stop_token_ids:
            last = reply.texts[i] if request.include_stop else ""
            reply = Reply([*reply.texts[:i], last], reply.ids[: i + 1], Finish("stop", token_id))
            break
    return _stopped_by_text(reply, request) if request.stop else reply


def _stopped_by_text(reply: Reply, request: EngineRequest) -> Reply:
    pace = Pace(time.monotonic)
    text, offsets = "".join(reply.texts), [0, *accumulate(map(len, reply.texts))]
    found = _first_stop(text, offsets, request, pace)
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
        ends = [max(0, min(offset - held, len(text))) for offset in offsets[begin : end + 1]]
        if end == count:  # the last token releases the rest
            ends[-1] = len(text)
        texts += [text[start:stop] for start, stop in pairwise(ends)]
        pace()
    return Reply(texts, reply.ids[:count], finish)


def _first_stop(
    text: str, offsets: Sequence[int], request: EngineRequest, pace: Pace
) -> tuple[str, int] | None:
    """Returns the first complete stop string beyond `min_tokens` tokens, and its start; None
    without any.
    """
    if request.min_tokens >= len(offsets) - 1:
        return None
    protected = offsets[request.min_tokens]
    first: tuple[int, str, int] | None = None
    for stop in request.stop:
        pace()
        start = text.find(stop, max(0, protected + 1 - len(stop)))
        if start >= 0 and (first is None or start + len(stop) < first[0]):
            first = start + len(stop), stop, start
    return None if first is None else first[1:]


OWN = 0.37
"""Probability of the reply's own token."""
MOST_BIAS = 100.0
NEVER = 1e-4
"""Odds of the end of text below which a reply does not end by itself."""
VOCABULARY = 50_000
"""Assumed number of tokens of a remote tokenizer."""


class TokenChooser:
    """Chooses tokens for one reply by the odds of `sampling`; the likeliest one, if `greedy`."""

    def __init__(self, sampling: Sampling, vocab_size: int, greedy: bool) -> None:
        limit, allowed = MOST_BIAS, sampling.allowed_token_ids
        bias = {
            token: min(max(value, -limit), limit) for token, value in sampling.logit_bias.items()
        }
        self._rest = (1 - OWN) / vocab_size
        """Probability of each token other than the reply's own."""
        self._vocab_size = vocab_size
        self._greedy = greedy
        self._bias = bias
        self._allowed = None if allowed is None else frozenset(allowed)
        self._ids = tuple(bias) if allowed is None else tuple(self._allowed or ())
        rest = self._rest
        weights = [rest * exp(bias[token]) if token in bias else rest for token in self._ids]
        self._sums = list(accumulate(weights))
        self._unnamed = 0.0 if allowed is not None else max(0.0, 1 - OWN - rest * len(self._ids))
        """Probability of all tokens that the request does not name."""
        self._best = max(zip(weights, self._ids, strict=True)) if greedy else (0.0, 0)

    def never_keeps(self, own: int) -> bool:
        """True when `own` is forbidden, or nearly so, even as the reply's own token."""
        return self._weight(own) < NEVER * (self._sums[-1] + self._unnamed)

    def _weight(self, own: int) -> float:
        if self._allowed is not None and own not in self._allowed:
            return 0.0
        return OWN * exp(self._bias.get(own, 0.0))

    def choose(self, own: int, rng: Random) -> int:
        """Returns the token in the place of `own`, the reply's own token."""
        weight = self._weight(own)
        if self._greedy:
            best, token = self._best
            if weight >= max(best, self._rest):
                return own
            return token if self._allowed is not None or best > self._rest else self._unbiased(own)
        drawn = rng.random() * (self._sums[-1] + weight + self._unnamed)
        if drawn < self._sums[-1]:
            return self._ids[bisect(self._sums, drawn)]
        return own if drawn < self._sums[-1] + weight else self._unbiased(own)

    def _unbiased(self, own: int) -> int:
        token = own
        while token in self._bias:
            token = (token + 1) % self._vocab_size
            if token == own:
                break
        return token


def chooser(request: EngineRequest, tokenizer: Tokenizer) -> TokenChooser | None:
    """Returns the chooser of a reply's tokens; None when the request does not affect the choice."""
    if request.sampling is None:
        return None
    return TokenChooser(request.sampling, tokenizer.vocab_size or VOCABULARY, request.greedy)


def biased(
    reply: Reply, request: EngineRequest, tokens: TokenChooser, tokenizer: Tokenizer, rng: Random
) -> Reply:
    """Returns `reply` with the tokens that `tokens` chooses; an end of text among them ends the
    reply.
    """
    eos, finish, pace = tokenizer.eos_token_id, reply.finish, Pace(time.monotonic)
    ids: list[int] = []
    for own in reply.ids:
        pace()
        token = tokens.choose(own, rng)
        if token == eos and not request.ignore_eos:
            if len(ids) >= request.min_tokens:
                finish = STOP
                break
            token = own
        ids.append(token)
    spans = [(len(ids), reply.spans[0][1])] if reply.spans and ids else ()
    return Reply(tokenizer.pieces(ids), ids, finish, spans)
