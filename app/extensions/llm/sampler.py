"""Samples the next token of each sequence.

A token depends on the sequence's own logits, parameters, seed and position alone. Draws keep no
state: any position of a sequence can be drawn at any time, and gets the same token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy
import torch
from msgspec import Struct
from torch import Tensor

from app.extensions.llm.draw import draw, numbers_like, select_rows
from app.extensions.llm.errors import RequestError
from app.extensions.llm.sampling_state import SamplingState
from app.extensions.llm.step import Rows
from app.extensions.llm.wire import WireLogprob

INVALID_LOGITS: Final = "The model's logits for this request are not numbers."
NO_TOKEN_LEFT: Final = "No token is left by what the request asks for."
INVALID_ROW: Final = -1
"""Token of a row whose logits are not finite."""
EMPTY_ROW: Final = -2
"""Token of a row whose tokens are all masked."""


class Sampled(Struct):
    """A sampled token, or an error."""

    token_id: int | None
    logprobs: WireLogprob | None = None
    error: str | None = None


def sample(logits: Tensor | Rows, states: Sequence[SamplingState]) -> list[Sampled]:
    """Samples one token for each row of `logits` [rows, vocabulary], which stays unchanged.

    All work is done on the device of the logits. Tokens are copied from it at once, and log
    probabilities, if requested, in a second copy.
    """
    adjusted_rows = [row for row, state in enumerate(states) if state.adjusts]
    drawn_rows = [row for row, state in enumerate(states) if not state.params.is_greedy]
    if isinstance(logits, numpy.ndarray):
        if not adjusted_rows and not drawn_rows:
            return _sample_greedy(logits, states)
        logits = torch.from_numpy(logits)
    adjusted = logits
    if adjusted_rows:
        adjusted = logits.clone()
    errors: dict[int, str] = {}
    for row in adjusted_rows:
        try:
            adjust(adjusted[row], states[row])
        except RequestError as error:
            errors[row] = str(error)
    tokens = adjusted.argmax(-1)
    if drawn_rows:
        drawn_states = [states[row] for row in drawn_rows]
        tokens[drawn_rows] = draw(select_rows(adjusted, drawn_rows), drawn_states)
    tokens = tokens.where(adjusted.amax(-1).isfinite(), EMPTY_ROW)
    tokens = tokens.where(logits.amax(-1).isfinite(), INVALID_ROW)
    sampled = [_sampled(token, errors.get(row)) for row, token in enumerate(tokens.tolist())]
    _add_logprobs(sampled, logits, states)
    return sampled


def logprobs_of(logits: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[WireLogprob]:
    """Returns the log probability of a token in each row of `logits`, and of the likeliest tokens.

    `counts` has the number of likeliest tokens for each row. `logits` [rows, vocabulary] are the
    model's own, before temperature and limits, as in vLLM.
    """
    logprobs = logits.log_softmax(-1)
    token_ids = torch.tensor(tokens, device=logits.device)
    token_logprobs = logprobs.gather(1, token_ids.unsqueeze(1))
    ranks = (logprobs > token_logprobs).sum(-1, keepdim=True) + 1
    width = max(counts)
    top = logprobs.topk(width)
    # Ids and ranks are exact in float32, so one tensor, copied once, holds everything.
    rows = torch.cat((token_logprobs, ranks, top.values, top.indices), dim=1).tolist()
    answers = []
    for token, count, row in zip(tokens, counts, rows, strict=True):
        logprob, rank, *top_row = row
        top_ids = map(int, top_row[width : width + count])
        likeliest = list(zip(top_ids, top_row[:count], strict=True))
        answers.append(WireLogprob(token, logprob, int(rank), likeliest))
    return answers


def adjust(row: Tensor, state: SamplingState) -> None:
    """Applies masks, bias and penalties in vLLM's order, in place.

    Raises:
        RequestError: The structured output has an error.
    """
    params = state.params
    _mask(row, state)
    if params.logit_bias:
        if state.bias is None:
            ids = torch.tensor(list(params.logit_bias), device=row.device)
            state.bias = (ids, numbers_like(row, params.logit_bias.values()))
        row.index_add_(0, *state.bias)
    if params.penalizes:
        _penalize(row, state)


def _sample_greedy(logits: Rows, states: Sequence[SamplingState]) -> list[Sampled]:
    """Does what `sample` does, without torch, which takes ten times as long on one thread."""
    sampled = []
    for row, token in enumerate(logits.argmax(-1).tolist()):
        # `token` has the largest logit, or the first that is not a number.
        is_valid = math.isfinite(logits[row, token])
        sampled.append(_sampled(token if is_valid else INVALID_ROW, None))
    if any(state.params.logprobs is not None for state in states):
        _add_logprobs(sampled, torch.from_numpy(logits), states)
    return sampled


def _sampled(token: int, error: str | None) -> Sampled:
    if token == INVALID_ROW:
        error = INVALID_LOGITS
    elif token == EMPTY_ROW:
        error = error or NO_TOKEN_LEFT
    if error:
        return Sampled(None, error=error)
    return Sampled(token)


def _add_logprobs(
    sampled: Sequence[Sampled], logits: Tensor, states: Sequence[SamplingState]
) -> None:
    rows = []
    token_ids = []
    counts = []
    for row, (result, state) in enumerate(zip(sampled, states, strict=True)):
        count = state.params.logprobs
        if result.token_id is not None and count is not None:
            rows.append(row)
            token_ids.append(result.token_id)
            counts.append(count)
    if rows:
        answers = logprobs_of(select_rows(logits, rows), token_ids, counts)
        for row, logprobs in zip(rows, answers, strict=True):
            sampled[row].logprobs = logprobs


def _mask(row: Tensor, state: SamplingState) -> None:
    """Sets the logits of tokens that may not be next to -inf, in place."""
    allowed = None
    if state.form is not None:
        allowed = state.form.mask()
    if allowed is not None:
        row.masked_fill_(~allowed.to(row.device), -math.inf)
    allowed_ids = state.params.allowed_token_ids
    if allowed_ids is not None:
        if state.disallowed is None:
            state.disallowed = torch.ones_like(row, dtype=torch.bool)
            state.disallowed[list(allowed_ids)] = False
        row.masked_fill_(state.disallowed, -math.inf)
    output_ids = state.output_ids
    for word in state.bad_words:
        # The last token of a word is banned after the others.
        *others, last = word
        if others == output_ids[max(0, len(output_ids) - len(others)) :]:
            row[last] = -math.inf
    if state.bans:
        end_ids = list(state.banned_ids)
        values = row[end_ids]
        row[end_ids] = -math.inf
        if state.form is not None:  # which may allow nothing else
            row[end_ids] = values.where(~row.amax().isfinite(), -math.inf)


def _penalize(row: Tensor, state: SamplingState) -> None:
    params = state.params
    factor = params.repetition_penalty
    if factor != 1.0:
        seen_ids = list({*state.prompt_ids, *state.output_ids})
        values = row[seen_ids]
        row[seen_ids] = torch.where(values > 0, values / factor, values * factor)
    counts = Counter(state.output_ids)
    if counts and (params.presence_penalty or params.frequency_penalty):
        times = numbers_like(row, counts.values())
        row[list(counts)] -= params.frequency_penalty * times + params.presence_penalty
