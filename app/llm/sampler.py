"""Samples the next token of each sequence, from its own logits, parameters, seed and position
alone.

Draws keep no state: any position of a sequence can be drawn at any time, and gets the same token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F
from msgspec import Struct

from app.engine.core.wire import WireLogprob
from app.llm.errors import RequestError
from app.llm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from app.llm.structured_output import FormMatcher

NO_NUMBERS: Final = "The model's logits for this request are not numbers."
NOTHING_LEFT: Final = "No token is left by what the request asks for."


class SamplingState(Struct):
    """State of a sequence that determines its next token."""

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: list[int]
    seed: int
    """Seed of this choice: `seed + index` of the request, or one that the engine drew."""
    banned_ids: frozenset[int] = frozenset()
    """Ids that end the sequence, banned before `min_tokens`."""
    form: FormMatcher | None = None
    bad_words: Sequence[Sequence[int]] = ()
    bias: tuple[torch.Tensor, torch.Tensor] | None = None
    """Ids and values of `logit_bias`, which may be many; made in the first step."""
    others: torch.Tensor | None = None
    """True for each token outside of `allowed_token_ids`; made in the first step."""

    @property
    def changes(self) -> bool:
        """True when anything but temperature, min_p, top_k and top_p changes the logits."""
        params = self.params
        masked = self.form or self.bad_words or params.allowed_token_ids is not None or self.bans
        return bool(params.logit_bias or params.penalises or masked)

    @property
    def bans(self) -> bool:
        return bool(self.banned_ids) and len(self.output_ids) < self.params.min_tokens


class Sampled(Struct):
    """A sampled token, or an error."""

    token_id: int | None
    logprobs: WireLogprob | None = None
    error: str | None = None


def sample(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[Sampled]:
    """Samples one token for each row of `logits` [rows, vocabulary], which stays unchanged.

    All work is done on the device of the logits. Tokens are copied from it at once, and log
    probabilities, if requested, in a second copy.
    """
    changing = [row for row, state in enumerate(states) if state.changes]
    rows, errors = logits.clone() if changing else logits, dict[int, str]()
    for row in changing:
        try:
            adjust(rows[row], states[row])
        except RequestError as error:
            errors[row] = str(error)
    tokens = rows.argmax(-1)
    drawing = [row for row, state in enumerate(states) if not state.params.is_greedy]
    if drawing:
        some = rows if len(drawing) == len(rows) else rows[drawing]
        tokens[drawing] = draw(some, [states[row] for row in drawing])
    tokens = tokens.where(rows.amax(-1).isfinite(), -2).where(logits.amax(-1).isfinite(), -1)
    sampled = []
    for row, token in enumerate(tokens.tolist()):
        flaw = (
            NO_NUMBERS
            if token == -1
            else errors.get(row) or (NOTHING_LEFT if token == -2 else None)
        )
        sampled.append(Sampled(None if flaw else token, error=flaw))
    asked = [
        (row, one.token_id, state.params.logprobs)
        for row, (one, state) in enumerate(zip(sampled, states, strict=True))
        if one.token_id is not None and state.params.logprobs is not None
    ]
    if asked:
        places, ids, counts = map(list, zip(*asked, strict=True))
        whole = logits if len(places) == len(logits) else logits[places]
        for row, told in zip(places, logprobs_of(whole, ids, counts), strict=True):
            sampled[row].logprobs = told
    return sampled


def logprobs_of(
    logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]
) -> list[WireLogprob]:
    """Returns the log probability of a token in each row of `logits`, and of the `counts` likeliest
    ones.

    `logits` [rows, vocabulary] are the model's own, before temperature and limits, as in vLLM.
    """
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1))
    ranks = (logprobs > own).sum(-1, keepdim=True) + 1
    top = logprobs.topk(max(counts))
    # Ids and ranks are exact in float32, so one tensor, copied once, holds everything.
    told = torch.cat((own, ranks, top.values, top.indices), dim=1).tolist()
    width = max(counts)
    answers = []
    for token, count, (logprob, rank, *rest) in zip(tokens, counts, told, strict=True):
        likeliest = zip(map(int, rest[width : width + count]), rest[:count], strict=True)
        answers.append(WireLogprob(token, logprob, int(rank), list(likeliest)))
    return answers


def adjust(row: torch.Tensor, state: SamplingState) -> None:
    """Applies masks, bias and penalties in vLLM's order, in place.

    Raises RequestError when the structured output has an error.
    """
    params = state.params
    allowed = None if state.form is None else state.form.mask()
    if allowed is not None:
        row.masked_fill_(~allowed.to(row.device), -math.inf)
    if params.allowed_token_ids is not None:
        if state.others is None:
            state.others = torch.ones_like(row, dtype=torch.bool)
            state.others[list(params.allowed_token_ids)] = False
        row.masked_fill_(state.others, -math.inf)
    said = state.output_ids
    for word in state.bad_words:  # its last token, where the others were the latest output
        before = len(word) - 1
        if before <= len(said) and list(said[len(said) - before :]) == list(word[:-1]):
            row[word[-1]] = -math.inf
    if state.bans:
        ends = list(state.banned_ids)
        values = row[ends]
        row[ends] = -math.inf
        if state.form is not None:  # which may allow nothing else
            row[ends] = values.where(~row.amax().isfinite(), -math.inf)
    if params.logit_bias:
        if state.bias is None:
            ids = torch.tensor(list(params.logit_bias), device=row.device)
            state.bias = ids, _numbers(params.logit_bias.values(), row)
        row.index_add_(0, *state.bias)
    if params.penalises:
        _penalise(row, state)


def _penalise(row: torch.Tensor, state: SamplingState) -> None:
    params = state.params
    if params.repetition_penalty != 1.0:
        seen = list({*state.prompt_ids, *state.output_ids})
        values = row[seen]
        factor = params.repetition_penalty
        row[seen] = torch.where(values > 0, values / factor, values * factor)
    counts = Counter(state.output_ids)
    if counts and (params.presence_penalty or params.frequency_penalty):
        times = _numbers(counts.values(), row)
        row[list(counts)] -= params.frequency_penalty * times + params.presence_penalty


def _numbers(numbers: Iterable[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=like.dtype, device=like.device)


HEAD: Final = 512
"""Likeliest tokens that are sorted first when only top_p is set; mostly enough."""
ALL: Final = 2.0
"""Top_p that keeps all tokens, above any rounded sum of shares."""
BLOCK: Final = 64
"""Tokens of a block; noise is computed for all blocks, and then for the tokens of one."""
WORD: Final = 0xFFFF_FFFF


def draw(logits: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    """Returns a token id for each row of `logits` [rows, vocabulary], by exponential races.

    In a race each entrant comes after a random time, at the rate of its probability, and the first
    one wins. Blocks of tokens race first, then the tokens of the winning block. A rounded
    probability changes the odds of one token; along a cumulative sum it would move the boundaries
    of all later tokens.
    """
    params = [it.params for it in states]
    temperatures = _numbers([it.temperature for it in params], logits)[:, None]
    shares = limited(logits / temperatures, params).softmax(-1)
    blocks = F.pad(shares, (0, -shares.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    keys = torch.tensor([_key(it.seed, len(it.output_ids)) for it in states], device=logits.device)
    numbers = torch.arange(blocks.shape[1], device=logits.device)
    first = race(blocks.sum(-1), -1 - numbers, keys)  # negative numbers are the noise of blocks
    ids = first.unsqueeze(1) * BLOCK + torch.arange(BLOCK, device=logits.device)
    winners = race(blocks[torch.arange(len(blocks), device=logits.device), first], ids, keys)
    return first * BLOCK + winners


def race(rates: torch.Tensor, numbers: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Returns the place of the first entrant of each row of `rates` [rows, entrants].

    Times depend on the row of `keys` [rows, 2] and on the entrant's own number alone: `numbers` are
    [entrants] or [rows, entrants]. The hash is of 32 bits, in products of 63.
    """
    mixed = (numbers * 0x1E3779B9 + keys[:, :1]) & WORD
    for shift, factor, key in ((16, 0x21F0AAAD, keys[:, 1:]), (15, 0x735A2D97, 0)):
        mixed = (((mixed ^ mixed >> shift) * factor) & WORD) ^ key
    uniform = (mixed ^ mixed >> 15).float().add_(0.5).mul_(2.0**-32)
    times = -torch.log1p(-uniform.clamp_(max=1 - 2.0**-24))
    return (rates / times).argmax(-1)


def _key(seed: int, position: int) -> tuple[int, int]:
    """Returns two words of 32 bits for the draw at a `position` of the reply."""
    digest = blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4]), int.from_bytes(digest[4:])


def limited(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Sets tokens outside of min_p, then top_k, then top_p to -inf, in place; returns `logits`."""
    if any(it.min_p > 0 for it in params):
        least = _numbers(
            [math.log(it.min_p) if it.min_p > 0 else -math.inf for it in params], logits
        )
        logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + least[:, None], -math.inf)
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
    """Returns the least logit that each row keeps, [rows, 1]."""
    size = logits.shape[1]
    width = min(size, max(head if k == size else k for k in top_k))
    most = torch.tensor(top_k, device=logits.device).unsqueeze(1)
    values = logits.topk(width).values
    values = values.masked_fill_(torch.arange(width, device=logits.device) >= most, -math.inf)
    whole = values.logsumexp(-1, True)
    if size in top_k:
        whole = torch.where(most < size, whole, logits.logsumexp(-1, True))
    shares = (values - whole).exp()
    kept = (shares.cumsum(-1) - shares < _numbers(top_p, logits)[:, None]).sum(-1, keepdim=True)
    least = values.gather(1, torch.minimum(kept, most).clamp_(min=1) - 1)
    if width < size and size in top_k:
        wider = ((kept == width) & (most == size)).squeeze(1).tolist()
        if short := [row for row, found in enumerate(wider) if found]:
            least[short] = _thresholds(
                logits[short], [size] * len(short), [top_p[it] for it in short], size
            )
    return least
