"""Draws token ids from logits, within min_p, top_k and top_p."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import torch
from torch import Tensor
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


def draw(logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
    """Returns a token id for each row of `logits` [rows, vocabulary], by exponential races.

    In a race each entrant comes after a random time, at the rate of its probability, and the first
    one wins. Blocks of tokens race first, then the tokens of the winning block. A rounded
    probability changes the odds of one token; along a cumulative sum it would move the boundaries
    of all later tokens.
    """
    device = logits.device
    params = [state.params for state in states]
    temperatures = numbers_like(logits, [param.temperature for param in params])
    probabilities = limit(logits / temperatures[:, None], params).softmax(-1)
    padding = -probabilities.shape[1] % BLOCK_SIZE
    blocks = functional.pad(probabilities, (0, padding)).unflatten(1, (-1, BLOCK_SIZE))
    words = [_key(state.seed, len(state.output_ids)) for state in states]
    keys = torch.tensor(words, device=device)
    block_numbers = torch.arange(blocks.shape[1], device=device)
    # The noise of blocks has negative numbers.
    winning_block = race(blocks.sum(-1), -1 - block_numbers, keys)
    first_ids = winning_block * BLOCK_SIZE
    token_ids = first_ids.unsqueeze(1) + torch.arange(BLOCK_SIZE, device=device)
    rows = torch.arange(len(blocks), device=device)
    return first_ids + race(blocks[rows, winning_block], token_ids, keys)


def race(rates: Tensor, numbers: Tensor, keys: Tensor) -> Tensor:
    """Returns the index of the first entrant of each row of `rates` [rows, entrants].

    Times depend on the row of `keys` [rows, 2] and on the entrant's own number alone: `numbers` are
    [entrants] or [rows, entrants]. The hash is of 32 bits, in products of 63.
    """
    mixed = (numbers * 0x1E3779B9 + keys[:, :1]) & MASK_32
    mixed = ((mixed ^ mixed >> 16) * 0x21F0AAAD & MASK_32) ^ keys[:, 1:]
    mixed = (mixed ^ mixed >> 15) * 0x735A2D97 & MASK_32
    uniform = (mixed ^ mixed >> 15).float().add_(0.5).mul_(2.0**-32)
    times = -torch.log1p(-uniform.clamp_(max=1 - 2.0**-24))
    return (rates / times).argmax(-1)


def limit(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Sets tokens outside of min_p, then top_k, then top_p to -inf, in place; returns `logits`."""
    if any(param.min_p > 0 for param in params):
        log_shares = numbers_like(logits, [_log(param.min_p) for param in params])
        thresholds = logits.amax(-1, keepdim=True) + log_shares[:, None]
        logits.masked_fill_(logits < thresholds, -math.inf)
    size = logits.shape[1]
    rows = []
    top_k = []
    top_p = []
    for row, param in enumerate(params):
        k = size
        if 0 < param.top_k < size:
            k = param.top_k
        p = ALL_TOKENS
        if param.top_p < 1:
            p = param.top_p
        if k < size or p < ALL_TOKENS:
            rows.append(row)
            top_k.append(k)
            top_p.append(p)
    if rows:
        selected = select_rows(logits, rows)
        selected.masked_fill_(selected < _thresholds(selected, top_k, top_p), -math.inf)
        if selected is not logits:
            logits[rows] = selected
    return logits


def _key(seed: int, position: int) -> tuple[int, int]:
    """Returns two words of 32 bits for the draw at a `position` of the reply."""
    digest = blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4]), int.from_bytes(digest[4:])


def _thresholds(
    logits: Tensor, top_k: Sequence[int], top_p: Sequence[float], head: int = SORTED_HEAD
) -> Tensor:
    """Returns the least logit that each row keeps, [rows, 1]."""
    size = logits.shape[1]
    has_open_row = size in top_k
    widths = [k for k in top_k if k < size]
    if has_open_row:
        widths.append(head)
    width = min(size, max(widths))
    max_counts = torch.tensor(top_k, device=logits.device).unsqueeze(1)
    values = logits.topk(width).values
    columns = torch.arange(width, device=logits.device)
    values = values.masked_fill_(columns >= max_counts, -math.inf)
    log_total = values.logsumexp(-1, True)
    if has_open_row:
        log_total = torch.where(max_counts < size, log_total, logits.logsumexp(-1, True))
    probabilities = (values - log_total).exp()
    likelier = probabilities.cumsum(-1) - probabilities
    is_within = likelier < numbers_like(logits, top_p)[:, None]
    counts = is_within.sum(-1, keepdim=True)
    last_columns = torch.minimum(counts, max_counts).clamp_(min=1) - 1
    thresholds = values.gather(1, last_columns)
    if width < size and has_open_row:
        # The head was too short for these rows: sort all their tokens.
        is_short = ((counts == width) & (max_counts == size)).squeeze(1).tolist()
        rows = [row for row, flag in enumerate(is_short) if flag]
        if rows:
            row_top_p = [top_p[row] for row in rows]
            thresholds[rows] = _thresholds(logits[rows], [size] * len(rows), row_top_p, head=size)
    return thresholds


def _log(share: float) -> float:
    if share > 0:
        return math.log(share)
    return -math.inf


def select_rows(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Returns these rows of `tensor`: the tensor itself for all its rows."""
    if len(rows) == len(tensor):
        return tensor
    return tensor[rows]


def numbers_like(tensor: Tensor, numbers: Iterable[float]) -> Tensor:
    """Returns `numbers` as a tensor with the dtype and the device of `tensor`."""
    return torch.tensor(list(numbers), dtype=tensor.dtype, device=tensor.device)
