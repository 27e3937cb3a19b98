"""The next token of each sequence, from its own logits, settings and random numbers alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

import torch
from msgspec import Struct

from app.llm.sampling_params import SamplingParams

HEAD: Final = 512
"""Candidates that are looked at first where top_p is set alone: mostly they are enough."""


class TokenLogprobs(Struct, frozen=True, array_like=True):
    """By the model's own probabilities: the token, whose rank counts from 1, and the likeliest."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class SamplingState(Struct):
    """What of a sequence matters for its next token."""

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    random: Random
    banned_ids: frozenset[int] = frozenset()
    """Tokens that would end it before `min_tokens`."""
    allowed: torch.Tensor | None = None
    """A mask of the vocabulary, by the grammar of a structured output."""

    @property
    def plain(self) -> bool:
        """Whether the likeliest token is the answer as it stands."""
        params = self.params
        changed = params.logit_bias or params.penalises or self.allowed is not None
        return params.greedy and not (changed or self._bans)

    @property
    def _bans(self) -> bool:
        return bool(self.banned_ids) and len(self.output_ids) < self.params.min_tokens


class Sampled(Struct):
    """A token; None where the logits are no numbers."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None


def sample(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[Sampled]:
    """One token a row of `logits` [rows, vocabulary], which is left as it is."""
    peaks, likeliest = logits.max(dim=-1)
    good, best = torch.isfinite(peaks).tolist(), likeliest.tolist()
    return [
        _sampled(row, state, token) if fine else Sampled(None)
        for row, state, token, fine in zip(logits, states, best, good, strict=True)
    ]


def _sampled(row: torch.Tensor, state: SamplingState, likeliest: int) -> Sampled:
    token = likeliest if state.plain else choose(adjusted(row, state), state)
    if token is None or state.params.logprobs is None:
        return Sampled(token)
    return Sampled(token, logprobs_of(row, token, state.params.logprobs))


def adjusted(row: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """Masks, bias and penalties, in vLLM's order."""
    params = state.params
    row = row.clone().cpu()
    if state.allowed is not None:
        row.masked_fill_(~state.allowed, -math.inf)
    if state._bans:
        row[list(state.banned_ids)] = -math.inf
    if params.logit_bias:
        row[list(params.logit_bias)] += torch.tensor(list(params.logit_bias.values()), dtype=row.dtype)
    if params.penalises:
        _penalise(row, state)
    return row


def _penalise(row: torch.Tensor, state: SamplingState) -> None:
    params = state.params
    if params.repetition_penalty != 1.0:
        seen = _ids({*state.prompt_ids, *state.output_ids})
        values = row[seen]
        factor = params.repetition_penalty
        row[seen] = torch.where(values > 0, values / factor, values * factor)
    counts = Counter(state.output_ids)
    if counts and (params.presence_penalty or params.frequency_penalty):
        times = torch.tensor(list(counts.values()), dtype=row.dtype)
        row[_ids(counts)] -= params.frequency_penalty * times + params.presence_penalty


def _ids(ids: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(ids), dtype=torch.long)


def choose(row: torch.Tensor, state: SamplingState) -> int | None:
    """A token by the adjusted logits; None when no token is left."""
    params = state.params
    if not math.isfinite(float(row.max())):
        return None
    if params.greedy:
        return int(row.argmax())
    values, ids = candidates(row / params.temperature, params)
    sums = values.double().softmax(-1).cumsum(-1)
    # The last candidate of all, should rounding leave nothing for it.
    place = min(
        int(torch.searchsorted(sums, state.random.random() * float(sums[-1]), right=True)), len(sums) - 1
    )
    return place if ids is None else int(ids[place])


def candidates(row: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The logits that min_p, then top_k, then top_p leave, and their ids; None when these are the places."""
    if params.min_p > 0:
        row = row.masked_fill(row < row.max() + math.log(params.min_p), -math.inf)
    if 0 < params.top_k < len(row):
        values, ids = row.topk(params.top_k)
    elif params.top_p < 1:
        values, ids = _head(row, params.top_p)
    else:
        return row, None
    if params.top_p < 1:
        total = values.logsumexp(-1) if 0 < params.top_k < len(row) else row.logsumexp(-1)
        shares = (values - total).exp()
        kept = max(1, int((shares.cumsum(-1) - shares < params.top_p).sum()))
        values, ids = values[:kept], ids[:kept]
    return values, ids


def _head(row: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens in order: as many as have `top_p` together, or more."""
    if len(row) > HEAD:
        values, ids = row.topk(HEAD)
        if float((values - row.logsumexp(-1)).exp().sum()) > top_p:
            return values, ids
    values, ids = row.sort(descending=True)
    return values, ids


def logprobs_of(row: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """Of the model's own logits, as vLLM tells them."""
    logprobs = row.log_softmax(-1)
    own = float(logprobs[token])
    rank = int((logprobs > logprobs[token]).sum()) + 1
    values, ids = logprobs.topk(count) if count else (logprobs[:0], [])
    pairs = zip(_listed(ids), values.tolist(), strict=True)
    return TokenLogprobs(token, own, rank, list(pairs))


def _listed(ids: torch.Tensor | list[int]) -> list[int]:
    return ids if isinstance(ids, list) else ids.tolist()
