"""Durations of a sequence alone: prefill, tokens and images (simulator.md section 9)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from config.settings import LatencySettings

LOWEST, HIGHEST = 0.3, 1.7
"""Bounds of a sampled duration, as factors of its mean (±70 %)."""


class PerRequestTiming:
    """Samples the durations, in seconds, of a sequence on its own timeline, from the latency settings.

    `running` returns how many sequences hold one of `slots` now. Load stretches every mean: by 1 at one
    sequence, up to `time-factor-under-load` when all slots are taken.
    """

    def __init__(self, latency: LatencySettings, slots: int, running: Callable[[], int], rng: Random) -> None:
        self._slots = slots
        self._running = running
        self._rng = rng
        self.use(latency)

    def use(self, latency: LatencySettings) -> None:
        self._latency = latency
        varies = latency.inter_token_latency_std_dev != 0 or latency.time_factor_under_load != 1.0
        gap_s = latency.inter_token_latency
        self.constant_gap_s: float | None = None if varies and gap_s else gap_s
        """Constant result of `inter_token` in seconds; None if it varies."""
        self._per_token = latency.latency_calculator == "per-token" or (
            not latency.latency_calculator
            and latency.time_to_first_token == 0
            and latency.time_to_first_token_std_dev == 0
        )
        means = (
            (latency.prefill_overhead, latency.prefill_time_per_token)
            if self._per_token
            else (latency.time_to_first_token,)
        )
        self._prefills = any(means)
        self.instant = self.constant_gap_s == 0 and not self._prefills
        """True if a prompt prefilled on this engine, and its reply, take no time."""

    def time_to_first_token(self, prompt_tokens: int, cached_tokens: int = 0, remote: bool = False) -> float:
        """Returns the seconds of prefill, or, if `remote`, of the transfer of its cache (9.3)."""
        at = self._latency
        if remote:
            mean, deviation = at.kv_cache_transfer_latency, at.kv_cache_transfer_latency_std_dev
            if at.latency_calculator == "constant" or (not at.latency_calculator and (mean or deviation)):
                return self._sample(mean, deviation)
            mean = prompt_tokens * at.kv_cache_transfer_time_per_token
            return self._sample(mean, at.kv_cache_transfer_time_std_dev)
        if not self._prefills:
            return 0.0
        factor = self.load_factor()
        if self._per_token:
            computed = max(0, prompt_tokens - cached_tokens)
            mean = factor * (at.prefill_overhead + computed * at.prefill_time_per_token)
            return self._sample(mean, at.prefill_time_std_dev)
        return self._sample(factor * at.time_to_first_token, at.time_to_first_token_std_dev)

    def inter_token(self) -> float:
        if self.constant_gap_s is not None:
            return self.constant_gap_s
        at = self._latency
        return self._sample(at.inter_token_latency * self.load_factor(), at.inter_token_latency_std_dev)

    def image(self) -> float:
        """Returns the seconds that an image takes, independent of load (9.5)."""
        at = self._latency
        return self._sample(at.time_to_generate_image, at.time_to_generate_image_std_dev)

    def load_factor(self) -> float:
        """Returns 1 for one sequence, `time-factor-under-load` at full slots, linear between (9.2)."""
        if self._slots <= 1:
            return 1.0
        others = max(self._running(), 1) - 1
        return 1.0 + (self._latency.time_factor_under_load - 1.0) * others / (self._slots - 1)

    def _sample(self, mean_s: float, std_dev_s: float) -> float:
        if std_dev_s == 0:
            return mean_s
        drawn = self._rng.gauss(mean_s, std_dev_s)
        return min(max(drawn, LOWEST * mean_s), HIGHEST * mean_s)
