"""Sampling parameters of a request, and vLLM's rules that change their values."""

from typing import Final

MIN_TEMPERATURE: Final = 0.01
"""Lowest temperature other than 0; vLLM raises lower ones, which could overflow."""


def floored_temperature(temperature: float) -> float:
    """Returns the temperature that vLLM samples with; only 0 is greedy."""
    if 0 < temperature < MIN_TEMPERATURE:
        return MIN_TEMPERATURE
    return temperature
