"""Tokens drawn by temperature, min_p, top_k and top_p, for all rows of a step at once on their device.

A row keeps what is at least as likely as the last token that its limits leave, so of equals all or none. The
others are drawn from in the order of their ids, so a row's token depends on nothing but the row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

from app.llm.sampling_params import SamplingParams

HEAD: Final = 512
"""Of the likeliest tokens so many are sorted where top_p is set alone; mostly they are enough."""
ALL: Final = 2.0
"""A share that no rounding of sums comes near."""


def draw(
    logits: torch.Tensor,
    likeliest: torch.Tensor,
    params: Sequence[SamplingParams],
    numbers: Sequence[float],
) -> torch.Tensor:
    """A token id for each row of `logits` [rows, vocabulary], by a number from 0 to 1, not included."""
    shares = limited(logits / _column([it.temperature for it in params], logits), params).softmax(-1)
    sums = shares.cumsum(-1)
    total = sums[:, -1:]
    # Numbers and sums are rounded: the last token of all may never be passed.
    wanted = torch.minimum(_column(numbers, logits) * total, total * (1 - torch.finfo(total.dtype).eps))
    places = torch.searchsorted(sums, wanted, right=True).clamp_(max=logits.shape[1] - 1)
    # A GPU sums in no order, so that a token without a share may seem to have a very small one.
    return torch.where(shares.gather(1, places).squeeze(1) > 0, places.squeeze(1), likeliest)


def limited(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """`logits`, changed in place: -inf for what min_p, then top_k, then top_p leave out."""
    if any(it.min_p > 0 for it in params):
        least = _column([math.log(it.min_p) if it.min_p > 0 else -math.inf for it in params], logits)
        logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + least, -math.inf)
    size = logits.shape[1]
    rows = [row for row, it in enumerate(params) if 0 < it.top_k < size or it.top_p < 1]
    if rows:
        top_k = [params[row].top_k if 0 < params[row].top_k < size else size for row in rows]
        top_p = [params[row].top_p if params[row].top_p < 1 else ALL for row in rows]
        some = logits if len(rows) == len(logits) else logits[rows]
        some.masked_fill_(some < _thresholds(some, top_k, top_p), -math.inf)
        if some is not logits:
            logits[rows] = some
    return logits


def _thresholds(
    logits: torch.Tensor, top_k: Sequence[int], top_p: Sequence[float], head: int = HEAD
) -> torch.Tensor:
    """The least logit that each row keeps, [rows, 1]."""
    size = logits.shape[1]
    width = min(size, max(head if k == size else k for k in top_k))
    most = torch.tensor(top_k, device=logits.device).unsqueeze(1)
    values = logits.topk(width).values
    values = values.masked_fill_(torch.arange(width, device=logits.device) >= most, -math.inf)
    whole = values.logsumexp(-1, True)
    if size in top_k:
        whole = torch.where(most < size, whole, logits.logsumexp(-1, True))
    shares = (values - whole).exp()
    kept = (shares.cumsum(-1) - shares < _column(top_p, logits)).sum(-1, keepdim=True)
    least = values.gather(1, torch.minimum(kept, most).clamp_(min=1) - 1)
    if width < size and size in top_k:
        wider = ((kept == width) & (most == size)).squeeze(1).tolist()
        short = [row for row, found in enumerate(wider) if found]
        if short:
            parts = [top_k[row] for row in short], [top_p[row] for row in short]
            least[short] = _thresholds(logits[short], *parts, head=size)
    return least


def _column(numbers: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(numbers, dtype=like.dtype, device=like.device).unsqueeze(1)
