"""Durations of sequences on their own timelines, sampled from the latency settings."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from config.settings import LatencySettings

MIN_FACTOR = 0.3
MAX_FACTOR = 1.7
"""Bounds of a sampled duration, as factors of its mean (±70 %)."""


class PerRequestTiming:
    """Samples the durations, in seconds, of a sequence on its own timeline.

    `running` returns how many sequences hold one of `slots` now. Load stretches every mean: by 1 at
    one sequence, up to `time-factor-under-load` when all slots are taken.
    """

    def __init__(
        self, latency: LatencySettings, slots: int, running: Callable[[], int], rng: Random
    ) -> None:
        self._slots = slots
        self._running = running
        self._rng = rng
        self.apply(latency)

    def apply(self, latency: LatencySettings) -> None:
        """Replaces the latency settings."""
        self._latency = latency
        varies = latency.inter_token_latency_std_dev != 0 or latency.time_factor_under_load != 1.0
        gap_s = latency.inter_token_latency
        self.constant_gap_s: float | None = gap_s
        """Constant result of `inter_token` in seconds; None if it varies."""
        if varies and gap_s:
            self.constant_gap_s = None
        self._is_per_token = latency.latency_calculator == "per-token" or (
            not latency.latency_calculator
            and latency.time_to_first_token == 0
            and latency.time_to_first_token_std_dev == 0
        )
        prefill_s = latency.time_to_first_token
        varies = latency.time_to_first_token_std_dev != 0 or latency.time_factor_under_load != 1.0
        if self._is_per_token:
            prefill_s = latency.prefill_overhead + latency.prefill_time_per_token
            varies = True
        self._constant_prefill_s: float | None = prefill_s
        """Constant duration of each prefill, in seconds; None if it varies."""
        if varies and prefill_s:
            self._constant_prefill_s = None
        self.instant = (
            self.constant_gap_s == 0
            and self._constant_prefill_s == 0
            and not latency.time_to_generate_image
        )
        """True if a prompt prefilled on this engine, and its reply, take no time."""

    def time_to_first_token(
        self, prompt_tokens: int, cached_tokens: int = 0, remote: bool = False
    ) -> float:
        """Returns the seconds of prefill, or, if `remote`, of the transfer of its cache."""
        latency = self._latency
        if remote:
            return self._transfer(prompt_tokens)
        if self._constant_prefill_s is not None:
            return self._constant_prefill_s
        factor = self.load_factor()
        if self._is_per_token:
            computed = max(0, prompt_tokens - cached_tokens)
            mean_s = factor * (latency.prefill_overhead + computed * latency.prefill_time_per_token)
            return self._sample(mean_s, latency.prefill_time_std_dev)
        return self._sample(
            factor * latency.time_to_first_token, latency.time_to_first_token_std_dev
        )

    @property
    def has_constant_transfer(self) -> bool:
        """True if the transfer of a prompt's cache does not depend on its length."""
        latency = self._latency
        if latency.latency_calculator:
            return latency.latency_calculator == "constant"
        return bool(latency.kv_cache_transfer_latency or latency.kv_cache_transfer_latency_std_dev)

    def _transfer(self, prompt_tokens: int) -> float:
        latency = self._latency
        if self.has_constant_transfer:
            return self._sample(
                latency.kv_cache_transfer_latency, latency.kv_cache_transfer_latency_std_dev
            )
        mean_s = prompt_tokens * latency.kv_cache_transfer_time_per_token
        return self._sample(mean_s, latency.kv_cache_transfer_time_std_dev)

    def inter_token(self) -> float:
        """Returns the seconds between two tokens."""
        if self.constant_gap_s is not None:
            return self.constant_gap_s
        latency = self._latency
        return self._sample(
            latency.inter_token_latency * self.load_factor(), latency.inter_token_latency_std_dev
        )

    def image(self) -> float:
        """Returns the seconds that an image takes, independent of load."""
        latency = self._latency
        return self._sample(latency.time_to_generate_image, latency.time_to_generate_image_std_dev)

    def load_factor(self) -> float:
        """Returns 1 for one sequence, `time-factor-under-load` at full slots, linear between."""
        if self._slots <= 1:
            return 1.0
        others = max(self._running(), 1) - 1
        return 1.0 + (self._latency.time_factor_under_load - 1.0) * others / (self._slots - 1)

    def _sample(self, mean_s: float, std_dev_s: float) -> float:
        if std_dev_s == 0:
            return mean_s
        drawn_s = self._rng.gauss(mean_s, std_dev_s)
        return min(max(drawn_s, MIN_FACTOR * mean_s), MAX_FACTOR * mean_s)
