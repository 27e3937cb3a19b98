"""Log probabilities by the model's own logits, before temperature and limits, as vLLM tells them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from app.llm.requests import TokenLogprobs


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Of a token in each row of `logits` [rows, vocabulary], and of so many of the likeliest beside it."""
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1))
    ranks = (logprobs > own).sum(-1, keepdim=True) + 1
    top = logprobs.topk(max(counts))
    # Ids and ranks are exact in float32, and one tensor is one way from the device.
    told = torch.cat((own, ranks, top.values, top.indices), dim=1).tolist()
    width = max(counts)
    answers = []
    for token, count, (logprob, rank, *rest) in zip(tokens, counts, told, strict=True):
        likeliest = zip(map(int, rest[width : width + count]), rest[:count], strict=True)
        answers.append(TokenLogprobs(token, logprob, int(rank), list(likeliest)))
    return answers
