"""The figures of times: mean, p50, p90 and p99, by which a simulation is compared with a recording, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TIMES = ("TTFT", "ITL", "E2E")
QUANTILES = (0.5, 0.9, 0.99)
NAMES = tuple(f"{time} {figure}" for time in TIMES for figure in ("mean", "p50", "p90", "p99"))
"""Of the twelve, in the order in which they always stand."""


def four(values: Iterable[float]) -> list[float]:
    """Mean, p50, p90 and p99; a quantile is one of the values."""
    ascending = sorted(values)
    return [sum(ascending) / len(ascending), *(quantile(ascending, share) for share in QUANTILES)]


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value below which that share of them lies."""
    return ascending[int(len(ascending) * share)]


def twelve(
    send_s: Sequence[float], first_s: Sequence[float], last_s: Sequence[float], output_tokens: Sequence[int]
) -> list[float]:
    """Those of TTFT, of the mean ITL of each request that has one, and of E2E. One has to have one."""
    ttft = [first - send for send, first in zip(send_s, first_s, strict=True)]
    itl = [
        (last - first) / (tokens - 1)
        for first, last, tokens in zip(first_s, last_s, output_tokens, strict=True)
        if tokens > 1
    ]
    e2e = [last - send for send, last in zip(send_s, last_s, strict=True)]
    return four(ttft) + four(itl) + four(e2e)
