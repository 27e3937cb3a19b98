"""Power and energy of a run.

A device that serves one request draws `low_w`, and one that serves 128 draws `high_w`; between them
power grows with the logarithm of the requests. An idle device draws `idle_w`. Without drafts
this is 16 % too low on H200 (median of 9 runs), with seven drafts 23 % (`benchmarks.drafts`).
"""

import math

from msgspec import Struct

from config.declaration import suggestion

FULL_REQUESTS = 128
"""Requests at which a device draws the most."""
AUTO_WATTS = "auto"
IDLE_SHARE = 80.3 / 592.8
"""Share of the full power that an idle device draws, as measured on H200."""


class DeviceWatts(Struct, frozen=True, kw_only=True):
    """Power of one device."""

    low_w: float
    high_w: float

    @property
    def idle_w(self) -> float:
        """Power without requests."""
        return min(self.low_w, IDLE_SHARE * self.high_w)

    def mean_w(self, running: float) -> float:
        """Returns the mean power at a mean number of running requests of an engine."""
        if running < 1:
            return self.idle_w + (self.low_w - self.idle_w) * running
        share = min(1.0, math.log(running) / math.log(FULL_REQUESTS))
        return self.low_w + (self.high_w - self.low_w) * share


class Energy(Struct, frozen=True, kw_only=True):
    """Energy of a run on all devices."""

    device_w: float
    """Mean power of a device."""
    kwh: float
    joules_per_output_token: float

    def __str__(self) -> str:
        return (
            f"energy: {self.kwh:,.3g} kWh, {self.device_w:,.0f} W per device,"
            f" {self.joules_per_output_token:,.3g} J per output token"
            " (16 % too low on H200, median of 9 runs)"
        )


def energy_of(
    watts: DeviceWatts, *, running: float, gpu_hours: float, output_tokens: int
) -> Energy:
    """Returns the energy of a run with a mean number of running requests of an engine."""
    mean_w = watts.mean_w(running)
    kwh = mean_w * gpu_hours / 1000
    return Energy(
        device_w=mean_w,
        kwh=kwh,
        joules_per_output_token=3.6e6 * kwh / max(1, output_tokens),
    )


def read_watts(text: str) -> DeviceWatts | str:
    """Returns the watts of `LOW-HIGH`, or the word `auto`.

    Raises:
        ValueError: The text has another form; the message completes "the value ...".
    """
    if text == AUTO_WATTS:
        return text
    low_text, dash, high_text = text.partition("-")
    try:
        low_w = float(low_text)
        high_w = float(high_text)
    except ValueError:
        dash = ""
        low_w = high_w = 0.0
    if not dash or not 0 < low_w <= high_w <= 10_000:
        hint = suggestion(text, [AUTO_WATTS])
        raise ValueError(f"must be auto or LOW-HIGH in watts, such as 267-680{hint}")
    return DeviceWatts(low_w=low_w, high_w=high_w)
