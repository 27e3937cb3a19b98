"""A constant that `calibrate` fits."""

from msgspec import Struct


class Constant(Struct, frozen=True):
    """A fitted constant, on a logarithmic scale."""

    name: str
    spread: float
    """Plausible distance from the start: natural logarithm of the ratio."""
    default: float
    """Start when the profile has 0, typical of measured devices."""
    maximum: float = 10.0
