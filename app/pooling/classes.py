"""Which class a text belongs to: by chance, but always the same one for the same tokens."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from hashlib import blake2b

from app.pooling.relevance import sigmoid

SPREAD = 8.0
"""Logits are in [-4, 4)."""


def class_logits(ids: Sequence[int], classes: int) -> list[float]:
    """A number for each of at most 16 classes, before the activation."""
    drawn = blake2b(str(list(ids)).encode(), digest_size=4 * classes).digest()
    return [SPREAD * (number / 2**32 - 0.5) for number in struct.unpack(f">{classes}I", drawn)]


def probabilities(logits: Sequence[float]) -> list[float]:
    """A probability in (0, 1) for each class; they add up to 1, but for a single class, which is a score."""
    if len(logits) == 1:
        return [sigmoid(logits[0])]
    weights = [math.exp(logit) for logit in logits]
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]
