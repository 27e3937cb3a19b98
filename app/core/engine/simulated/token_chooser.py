"""Applies a request's biases to the tokens of a reply.

A reply's original token is chosen with a probability of 0.37 (see `own_logprob`), all others are
equally likely. So a bias of 100 decides, one of -100 forbids, and others shift the odds.
"""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from math import exp
from random import Random

from app.core.base.clock.pause import paced
from app.core.engine.request import STOP, EngineRequest, Reply
from app.core.engine.sampling import Sampling
from app.core.text.base import Tokenizer

ORIGINAL_PROBABILITY = 0.37
"""Probability of the reply's original token."""
MAX_BIAS = 100.0
NEVER = 1e-4
"""Odds of the end of text below which a reply does not end by itself."""


class TokenChooser:
    """Chooses tokens for one reply by the odds of `sampling`; if greedy, the likeliest."""

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        bias = {
            token: min(max(value, -MAX_BIAS), MAX_BIAS)
            for token, value in sampling.logit_bias.items()
        }
        other = (1 - ORIGINAL_PROBABILITY) / vocab_size
        self._other_probability = other
        """Probability of each token other than the reply's original one."""
        self._vocab_size = vocab_size
        self._greedy = sampling.is_greedy
        self._bias = bias
        self._allowed: frozenset[int] | None = None
        self._ids = tuple(bias)
        """Token ids that the request names."""
        self._unnamed = max(0.0, 1 - ORIGINAL_PROBABILITY - other * len(bias))
        """Probability of all tokens that the request does not name."""
        if sampling.allowed_token_ids is not None:
            self._allowed = frozenset(sampling.allowed_token_ids)
            self._ids = tuple(self._allowed)
            self._unnamed = 0.0
        weights = [other * exp(bias[token]) if token in bias else other for token in self._ids]
        self._sums = list(accumulate(weights))
        self._best = 0.0, 0
        """Weight and id of the likeliest named token; only for a greedy choice."""
        if sampling.is_greedy:
            self._best = max(zip(weights, self._ids, strict=True))

    def never_keeps(self, original: int) -> bool:
        """Returns whether `original` is forbidden, or nearly so, even where it is the original."""
        return self._weight(original) < NEVER * (self._sums[-1] + self._unnamed)

    def _weight(self, original: int) -> float:
        if self._allowed is not None and original not in self._allowed:
            return 0.0
        return ORIGINAL_PROBABILITY * exp(self._bias.get(original, 0.0))

    def choose(self, original: int, rng: Random) -> int:
        """Returns the token in the place of `original`, the reply's original token."""
        weight = self._weight(original)
        if self._greedy:
            best_weight, best = self._best
            if weight >= max(best_weight, self._other_probability):
                return original
            if self._allowed is not None or best_weight > self._other_probability:
                return best
            return self._unbiased(original)
        drawn = rng.random() * (self._sums[-1] + weight + self._unnamed)
        if drawn < self._sums[-1]:
            return self._ids[bisect(self._sums, drawn)]
        if drawn < self._sums[-1] + weight:
            return original
        return self._unbiased(original)

    def _unbiased(self, original: int) -> int:
        """Returns the next token without a bias, from `original` on."""
        token = original
        while token in self._bias:
            token = (token + 1) % self._vocab_size
            if token == original:
                break
        return token

    def rewrite(
        self, reply: Reply, request: EngineRequest, tokenizer: Tokenizer, rng: Random
    ) -> Reply:
        """Returns `reply` with the chosen tokens. An end of text among them ends the reply."""
        eos = tokenizer.eos_token_id
        finish = reply.finish
        ids: list[int] = []
        for original in paced(reply.ids):
            token = self.choose(original, rng)
            if token == eos and not request.sampling.ignore_eos:
                if len(ids) >= request.sampling.min_tokens:
                    finish = STOP
                    break
                token = original
            ids.append(token)
        spans = [(len(ids), reply.spans[0][1])] if reply.spans and ids else ()
        return Reply(tokenizer.pieces(ids), ids, finish, spans)
