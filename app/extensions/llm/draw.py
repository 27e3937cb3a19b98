"""Draws token ids from logits, within min_p, top_k and top_p."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import torch
from torch.nn import functional

from app.extensions.llm.sampling_params import SamplingParams
from app.extensions.llm.sampling_state import SamplingState

SORTED_HEAD: Final = 512
"""Likeliest tokens that are sorted first when only top_p is set; mostly enough."""
ALL_TOKENS: Final = 2.0
"""Top_p that keeps all tokens, above any rounded sum of probabilities."""
BLOCK_SIZE: Final = 64
"""Tokens of a block; noise is computed for all blocks, and then for the tokens of one."""
MASK_32: Final = 0xFFFF_FFFF


def draw(logits: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    """Returns a token id for each row of `logits` [rows, vocabulary], by exponential races.

    In a race each entrant comes after a random time, at the rate of its probability, and the first
    one wins. Blocks of tokens race first, then the tokens of the winning block. A rounded
    probability changes the odds of one token; along a cumulative sum it would move the boundaries
    of all later tokens.
    """
    device = logits.device
    params = [state.params for state in states]
    temperatures = _column([param.temperature for param in params], logits)
    probabilities = limit(logits / temperatures, params).softmax(-1)
    padding = -probabilities.shape[1] % BLOCK_SIZE
    blocks = functional.pad(probabilities, (0, padding)).unflatten(1, (-1, BLOCK_SIZE))
    keys = torch.tensor(
        [_key(state.seed, len(state.output_ids)) for state in states], device=device
    )
    block_numbers = torch.arange(blocks.shape[1], device=device)
    # The noise of blocks has negative numbers.
    winning_block = race(blocks.sum(-1), -1 - block_numbers, keys)
    first_ids = winning_block * BLOCK_SIZE
    token_ids = first_ids.unsqueeze(1) + torch.arange(BLOCK_SIZE, device=device)
    rows = torch.arange(len(blocks), device=device)
    return first_ids + race(blocks[rows, winning_block], token_ids, keys)


def race(rates: torch.Tensor, numbers: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Returns the index of the first entrant of each row of `rates` [rows, entrants].

    Times depend on the row of `keys` [rows, 2] and on the entrant's own number alone: `numbers` are
    [entrants] or [rows, entrants]. The hash is of 32 bits, in products of 63.
    """
    mixed = (numbers * 0x1E3779B9 + keys[:, :1]) & MASK_32
    for shift, factor, key in ((16, 0x21F0AAAD, keys[:, 1:]), (15, 0x735A2D97, 0)):
        mixed = (((mixed ^ mixed >> shift) * factor) & MASK_32) ^ key
    uniform = (mixed ^ mixed >> 15).float().add_(0.5).mul_(2.0**-32)
    times = -torch.log1p(-uniform.clamp_(max=1 - 2.0**-24))
    return (rates / times).argmax(-1)


def limit(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Sets tokens outside of min_p, then top_k, then top_p to -inf, in place; returns `logits`."""
    if any(param.min_p > 0 for param in params):
        log_shares = [math.log(param.min_p) if param.min_p > 0 else -math.inf for param in params]
        thresholds = logits.amax(-1, keepdim=True) + _column(log_shares, logits)
        logits.masked_fill_(logits < thresholds, -math.inf)
    size = logits.shape[1]
    rows = []
    top_k = []
    top_p = []
    for row, param in enumerate(params):
        has_top_k = 0 < param.top_k < size
        has_top_p = param.top_p < 1
        if has_top_k or has_top_p:
            rows.append(row)
            top_k.append(param.top_k if has_top_k else size)
            top_p.append(param.top_p if has_top_p else ALL_TOKENS)
    if rows:
        selected = logits if len(rows) == len(logits) else logits[rows]
        selected.masked_fill_(selected < _thresholds(selected, top_k, top_p), -math.inf)
        if selected is not logits:
            logits[rows] = selected
    return logits


def _key(seed: int, position: int) -> tuple[int, int]:
    """Returns two words of 32 bits for the draw at a `position` of the reply."""
    digest = blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4]), int.from_bytes(digest[4:])


def _thresholds(
    logits: torch.Tensor, top_k: Sequence[int], top_p: Sequence[float], head: int = SORTED_HEAD
) -> torch.Tensor:
    """Returns the least logit that each row keeps, [rows, 1]."""
    size = logits.shape[1]
    width = min(size, max(head if k == size else k for k in top_k))
    max_counts = torch.tensor(top_k, device=logits.device).unsqueeze(1)
    values = logits.topk(width).values
    columns = torch.arange(width, device=logits.device)
    values = values.masked_fill_(columns >= max_counts, -math.inf)
    log_total = values.logsumexp(-1, True)
    if size in top_k:
        log_total = torch.where(max_counts < size, log_total, logits.logsumexp(-1, True))
    probabilities = (values - log_total).exp()
    is_within = probabilities.cumsum(-1) - probabilities < _column(top_p, logits)
    counts = is_within.sum(-1, keepdim=True)
    thresholds = values.gather(1, torch.minimum(counts, max_counts).clamp_(min=1) - 1)
    if width < size and size in top_k:
        # The head was too short for these rows: sort all their tokens.
        is_short = ((counts == width) & (max_counts == size)).squeeze(1).tolist()
        rows = [row for row, flag in enumerate(is_short) if flag]
        if rows:
            row_top_p = [top_p[row] for row in rows]
            thresholds[rows] = _thresholds(logits[rows], [size] * len(rows), row_top_p, head=size)
    return thresholds


def _column(numbers: Iterable[float], like: torch.Tensor) -> torch.Tensor:
    """Returns `numbers` [rows, 1] with the dtype and the device of `like`."""
    return torch.tensor(list(numbers), dtype=like.dtype, device=like.device)[:, None]
