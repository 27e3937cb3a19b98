"""Counts finished sequences: rows of numbers, observed in blocks."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from operator import attrgetter
from typing import Literal

from msgspec import Struct

from app.base.metrics.families import FINISHED, EngineFamilies
from app.base.metrics.figures import Distribution
from app.base.metrics.instruments import Counter, Histogram

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]

BLOCK = 512
"""Rows of one kind that are counted together; a block takes a millisecond at most."""


class FinishedSequence(Struct, frozen=True, gc=False):
    """The numbers of a finished sequence; 0 for phases that it did not reach.

    `max_tokens` is the limit in force (vLLM sets one when the client gives none). `queue_s` is the wait,
    `prefill_s` the time from leaving the queue to the first token, `decode_s` from the first token to the
    last, `e2e_s` from arrival to the end. Only the last sequence of a prompt has `choices`, their number, and
    `longest`, the tokens of the longest; other sequences have 0.
    """

    reason: FinishReason
    prompt_tokens: int
    generation_tokens: int
    cached_tokens: int
    max_tokens: int | None
    queue_s: float
    prefill_s: float
    decode_s: float
    e2e_s: float
    preemptions: int = 0
    choices: int = 0
    longest: int = 0

    @property
    def mean_gap_s(self) -> float:
        return self.decode_s / (self.generation_tokens - 1) if self.generation_tokens > 1 else 0.0


COLUMNS = {
    "request_prompt_tokens": "prompt_tokens",
    "request_generation_tokens": "generation_tokens",
    "request_num_preemptions": "preemptions",
    "request_queue_time_seconds": "queue_s",
    "request_prefill_time_seconds": "prefill_s",
    "request_decode_time_seconds": "decode_s",
    "request_time_per_output_token_seconds": "mean_gap_s",
    "e2e_request_latency_seconds": "e2e_s",
}
"""Maps histograms to the fields that they observe, for every finish reason."""


class FinishedSequences:
    def __init__(self, families: EngineFamilies) -> None:
        one, success = families.one, "request_success_total"
        self._success = {reason: one(Counter, success, finished_reason=reason) for reason in FINISHED}
        self._columns = [(one(Histogram, name), attrgetter(of)) for name, of in COLUMNS.items()]
        self._e2e = one(Histogram, "e2e_request_latency_seconds")
        self._computed = one(Histogram, "request_prefill_kv_computed_tokens")
        self._inference = one(Histogram, "request_inference_time_seconds")
        self._max_tokens = one(Histogram, "request_params_max_tokens")
        self._choices = one(Histogram, "request_params_n")
        self._longest = one(Histogram, "request_max_num_generation_tokens")

    def by_reason(self) -> dict[str, float]:
        return {reason: counter.value for reason, counter in self._success.items()}

    def latency(self) -> Distribution:
        return Distribution.of(self._e2e)

    def observe(self, rows: Sequence[FinishedSequence], completed: Sequence[tuple[int, int]]) -> None:
        """Counts rows. `completed` adds choices and longest of prompts that no row completes."""
        for reason, count in Tally(row.reason for row in rows).items():
            self._success[reason].value += count
        for histogram, number in self._columns:
            histogram.observe_all(map(number, rows))
        self._computed.observe_all([row.prompt_tokens - row.cached_tokens for row in rows])
        self._inference.observe_all([row.prefill_s + row.decode_s for row in rows])
        self._max_tokens.observe_all([row.max_tokens for row in rows if row.max_tokens])
        prompts = [*completed, *((row.choices, row.longest) for row in rows if row.choices)]
        self._choices.observe_all([choices for choices, _ in prompts])
        self._longest.observe_all([longest for _, longest in prompts])
