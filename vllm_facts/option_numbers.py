"""Numbers among the options of a command line, which are texts until a rule needs them."""

from __future__ import annotations

import math

from config.sources import FlagValues

DATA_PARALLEL = "data-parallel-size"
PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", DATA_PARALLEL)


def number_of(values: FlagValues, name: str) -> int:
    """Returns the whole number of an option; 0 without one."""
    value = values.get(name)
    if not isinstance(value, str):
        return 0
    try:
        return int(value)
    except ValueError:
        return 0


def positive_number(values: FlagValues, name: str, default: int) -> int:
    """Returns the number of an option; `default` without one above 0."""
    number = number_of(values, name)
    if number > 0:
        return number
    return default


def parallel_devices(values: FlagValues) -> int:
    """Returns the product of the parallel sizes."""
    return math.prod(positive_number(values, name, 1) for name in PARALLEL)
