"""Statistics of latencies: means, quantiles, and the twelve figures of a run."""

from collections.abc import Iterable, Sequence

LATENCY_NAMES = ("TTFT", "TPOT", "E2E")
QUANTILES = (0.5, 0.9, 0.99)
FIGURE_NAMES = tuple(
    f"{latency} {figure}" for latency in LATENCY_NAMES for figure in ("mean", "p50", "p90", "p99")
)
"""Names of the twelve figures, in their fixed order."""


def mean_and_quantiles(values: Iterable[float]) -> list[float]:
    """Returns mean, p50, p90 and p99; a quantile is one of the values."""
    ascending = sorted(values)
    mean = sum(ascending) / len(ascending)
    return [mean, *(quantile(ascending, share) for share in QUANTILES)]


def quantile(ascending: Sequence[float], share: float) -> float:
    """Returns the value that exceeds this share of the values."""
    return ascending[int(len(ascending) * share)]


def latencies(
    send_s: Sequence[float],
    first_s: Sequence[float],
    last_s: Sequence[float],
    output_tokens: Sequence[float],
) -> tuple[list[float], list[float], list[float]]:
    """Returns TTFT, TPOT and E2E in seconds, one value per request.

    The TPOT is the mean time of a request's tokens after the first, as in `vllm bench serve`. It
    leaves out requests with a single token.
    """
    ttft_s = [first - send for send, first in zip(send_s, first_s, strict=True)]
    tpot_s = [
        (last - first) / (tokens - 1)
        for first, last, tokens in zip(first_s, last_s, output_tokens, strict=True)
        if tokens > 1
    ]
    e2e_s = [last - send for send, last in zip(send_s, last_s, strict=True)]
    return ttft_s, tpot_s, e2e_s


def latency_figures(*columns: Sequence[float]) -> list[float]:
    """Returns the figures named by `FIGURE_NAMES`, in seconds. Takes the columns of `latencies`."""
    return [figure for values in latencies(*columns) for figure in mean_and_quantiles(values)]
