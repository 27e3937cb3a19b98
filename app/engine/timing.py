"""How long prefill and each token take (simulator.md section 9, at full resolution)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

LOWEST, HIGHEST = 0.3, 1.7
"""Jitter never leaves ±70 % of the mean."""


class Durations(Protocol):
    """The latency settings, in seconds (calculator: "", "constant" or "per-token")."""

    @property
    def latency_calculator(self) -> str: ...
    @property
    def time_to_first_token(self) -> float: ...
    @property
    def time_to_first_token_std_dev(self) -> float: ...
    @property
    def inter_token_latency(self) -> float: ...
    @property
    def inter_token_latency_std_dev(self) -> float: ...
    @property
    def prefill_overhead(self) -> float: ...
    @property
    def prefill_time_per_token(self) -> float: ...
    @property
    def prefill_time_std_dev(self) -> float: ...
    @property
    def time_factor_under_load(self) -> float: ...
    @property
    def kv_cache_transfer_latency(self) -> float: ...
    @property
    def kv_cache_transfer_latency_std_dev(self) -> float: ...
    @property
    def kv_cache_transfer_time_per_token(self) -> float: ...
    @property
    def kv_cache_transfer_time_std_dev(self) -> float: ...
    @property
    def time_to_generate_image(self) -> float: ...
    @property
    def time_to_generate_image_std_dev(self) -> float: ...


class Latency:
    """Samples the two waits of a generation, in seconds.

    `running` tells how many sequences hold a place now, of `places`; under load every mean is
    stretched by 1 at one sequence, up to `time-factor-under-load` when all places are taken.
    """

    def __init__(self, durations: Durations, places: int, running: Callable[[], int], rng: Random) -> None:
        self.durations = durations
        self._places = places
        self._running = running
        self._rng = rng

    def change(self, durations: Durations) -> None:
        """Sample from other settings from now on."""
        self.durations = durations

    def time_to_first_token(self, prompt_tokens: int, cached_tokens: int = 0, remote: bool = False) -> float:
        """Seconds of prefill for `prompt_tokens`, of which `cached_tokens` cost nothing.

        A prefill that was done elsewhere (`remote`) costs the transfer of its cache instead (9.3).
        """
        if remote:
            return self._transfer(prompt_tokens)
        at = self.durations
        factor = self.load_factor()
        if self._per_token():
            computed = max(0, prompt_tokens - cached_tokens)
            mean = factor * (at.prefill_overhead + computed * at.prefill_time_per_token)
            return self._sample(mean, at.prefill_time_std_dev)
        return self._sample(factor * at.time_to_first_token, at.time_to_first_token_std_dev)

    def _transfer(self, prompt_tokens: int) -> float:
        """Seconds until the cache of a remote prefill has come; load does not stretch them."""
        at = self.durations
        constant = at.kv_cache_transfer_latency, at.kv_cache_transfer_latency_std_dev
        if at.latency_calculator == "constant" or (not at.latency_calculator and any(constant)):
            return self._sample(*constant)
        return self._sample(
            prompt_tokens * at.kv_cache_transfer_time_per_token, at.kv_cache_transfer_time_std_dev
        )

    def image(self) -> float:
        """Seconds that an image takes; load does not stretch them (9.5)."""
        at = self.durations
        return self._sample(at.time_to_generate_image, at.time_to_generate_image_std_dev)

    def inter_token(self) -> float:
        """Seconds between one token and the next."""
        at = self.durations
        mean, std_dev = at.inter_token_latency, at.inter_token_latency_std_dev
        if at.time_factor_under_load != 1.0:
            mean *= self.load_factor()
        return mean if std_dev == 0 else self._sample(mean, std_dev)

    def load_factor(self) -> float:
        """1 when alone, `time-factor-under-load` when full, linear in between (9.2)."""
        if self._places <= 1:
            return 1.0
        others = max(self._running(), 1) - 1
        return 1.0 + (self.durations.time_factor_under_load - 1.0) * others / (self._places - 1)

    def _per_token(self) -> bool:
        at = self.durations
        if at.latency_calculator:
            return at.latency_calculator == "per-token"
        return at.time_to_first_token == 0 and at.time_to_first_token_std_dev == 0

    def _sample(self, mean_s: float, std_dev_s: float) -> float:
        if std_dev_s == 0 or mean_s == 0:
            return mean_s
        drawn = self._rng.gauss(mean_s, std_dev_s)
        return min(max(drawn, LOWEST * mean_s), HIGHEST * mean_s)
