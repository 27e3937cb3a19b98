"""What one choice was asked for, in the house's own words."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Generation(Struct, frozen=True, kw_only=True):
    """One choice of one request. Every API family translates into this once, at its door.

    Token counts are in tokens, `arrival_s` in seconds of the monotonic clock.
    """

    request_id: str
    index: int
    """Place of this choice in the answer: prompt index * n + choice (vllm-api.md 3.2)."""
    model: str
    prompt_ids: Sequence[int]
    echo_text: str
    """What mode `echo` says: the last message, or the prompt."""
    max_tokens: int
    """Already limited to what fits the context."""
    limited: bool
    """True when the client gave `max_tokens`; the length model differs (simulator.md 5.4)."""
    arrival_s: float
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    seed: int | None = None
    greedy: bool = False
    """Temperature 0: the same prompt gets the same reply."""
    logprobs: int | None = None
    """Alternatives wanted per generated token; None when no log probabilities are wanted."""
    prompt_logprobs: int | None = None
    n: int = 1
    """Choices that this prompt was asked for (metrics only)."""
    together: int = 1
    """Choices of the whole request. Several take turns token by token, as in the steps of an engine."""
