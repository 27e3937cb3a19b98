"""The vector of a text: a plain function of its token ids (simulator.md 2.8).

Component i < n of a text of n tokens t is ``2 * (t[i] mod 1024) / 1024 - 1``; the ones behind repeat the
tokens more coarsely, ``2 * (t[i mod n] mod 256) / 256 - 1``. All are in [-1, 1) and exact in 32 bits, and a
shorter vector is the beginning of a longer one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence


def embedding(ids: Sequence[int], dimensions: int) -> array[float]:
    """The vector of `ids`, with `dimensions` >= 1 components, as the reference makes it: not normalized."""
    fine = array("f", (token % 1024 / 512 - 1 for token in ids[:dimensions]))
    missing = dimensions - len(fine)
    if not missing:
        return fine
    coarse = array("f", (token % 256 / 128 - 1 for token in ids[:missing])) or array("f", (0.0,))
    return fine + (coarse * (missing // len(coarse) + 1))[:missing]


def normalized(vector: array[float]) -> array[float]:
    """The vector with length 1; one without length stays as it is."""
    length = math.sqrt(math.fsum(number * number for number in vector))
    return array("f", (number / length for number in vector)) if length else vector
