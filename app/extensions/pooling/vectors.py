"""The simulated pooling model: vectors of texts; class probabilities and scores from their tokens.

Vectors have length 1. Texts with the same words and characters have near vectors, other texts
distant ones: `features` gives each word, and each three characters of a word, places in the vector.

The cosine of two texts is the share of weight that they have in common, but for hash collisions of
about 1 / sqrt(dimensions). Sums are of whole numbers, and roots and quotients follow IEEE 754: a
text has the same vector on every machine.

A shorter vector is the beginning of a longer one, before scaling to its length. As each block is as
long as all before it, the shortest vectors contain all features too.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import mul

from app.core.text.base import Tokenizer
from app.extensions.pooling.features import (
    ROOTS,
    WORD_WEIGHT,
    KnownFeatures,
    Pace,
    Sums,
    blocks_of,
)
from app.extensions.pooling.late_chunking import chunk_ranges

FLOAT_BYTES = 4
ROOT_OF_TWO = math.sqrt(2)
TASKS = ("embed", "classify", "token_embed", "token_classify")
"""Outputs for a text, or for each of its tokens."""
LOGIT_RANGE = 8.0
"""Logits, of classes and of pairs, are between -4 and 4."""
LETTERS: Mapping[str, str] = {"float32": "f", "float16": "e", "bfloat16": "H"}
"""Codes of `struct`; B for others."""
SMALL: Mapping[str, tuple[int, int]] = {"bfloat16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
"""Bits of exponent and of mantissa of formats that Python does not know."""
Pack = Callable[["array[float]"], bytes]


def embedding(
    text: str,
    dimensions: int,
    pace: Pace,
    *,
    known_features: KnownFeatures,
    unit: bool = True,
) -> array[float]:
    """Returns the vector of `text`, 1 to 2**18 numbers, of length 1 if `unit`.

    Calls `pace` between parts.
    """
    sums = text_sums(text, dimensions, pace, known_features=known_features)
    length = float(ROOTS * WORD_WEIGHT)
    if unit:
        length = length_of(sums)
    return scaled_vector(sums, dimensions, length)


def mean_embedding(
    texts: Sequence[str],
    dimensions: int,
    pace: Pace,
    *,
    known_features: KnownFeatures,
    unit: bool = True,
) -> array[float]:
    """Returns the mean of the vectors that texts have without `unit`, of length 1 if `unit`.

    Calls `pace` between parts. A mean of zero stays zero.
    """
    mean_sums = Sums({}, {})
    for text in texts:
        pace()
        sums = text_sums(text, dimensions, pace, known_features=known_features)
        for mean_part, part in zip(mean_sums, sums, strict=True):
            for place, number in part.items():
                mean_part[place] = mean_part.get(place, 0) + number
    length = float(ROOTS * WORD_WEIGHT * len(texts))
    if unit:
        length = length_of(mean_sums) or length
    return scaled_vector(mean_sums, dimensions, length)


def text_sums(text: str, dimensions: int, pace: Pace, *, known_features: KnownFeatures) -> Sums:
    """Returns the sums of a text's features, which are not all zero."""
    sums = known_features.sums(text, dimensions, pace)
    if not any(sums.odd.values()) and not any(sums.even.values()):
        sums.odd[0] = blocks_of(dimensions)[0].factor
    return sums


def length_of(sums: Sums) -> float:
    """Returns the length of the vector with these sums, in parts of a unit."""
    odd_square = sum(map(mul, sums.odd.values(), sums.odd.values()))
    even_square = sum(map(mul, sums.even.values(), sums.even.values()))
    return math.sqrt(2 * odd_square + even_square)


def scaled_vector(sums: Sums, dimensions: int, length: float) -> array[float]:
    """Returns the vector with these sums, divided by `length`."""
    odd_sums, even_sums = sums
    # Short texts leave most places of a vector at 0.
    vector = array("f", bytes(FLOAT_BYTES * dimensions))
    scale = ROOT_OF_TWO / length
    for place, number in odd_sums.items():
        vector[place] = number * scale
    scale = 1 / length
    for place, number in even_sums.items():
        vector[place] = number * scale
    return vector


@dataclass(frozen=True, slots=True)
class PoolingModel:
    """Makes vectors of `dimensions` numbers, and probabilities of `classes` classes.

    `activation` is a request's `use_activation`. None means the model's default, true: vectors of
    length 1, and probabilities instead of logits.
    """

    dimensions: int
    classes: int
    tokenizer: Tokenizer
    pace: Pace
    known_features: KnownFeatures = field(default_factory=KnownFeatures)

    def vector(
        self, text: str, activation: bool | None, dimensions: int | None = None
    ) -> array[float]:
        """Returns the vector of a text; `dimensions` replaces the model's own number."""
        size = dimensions or self.dimensions
        return embedding(
            text,
            size,
            self.pace,
            known_features=self.known_features,
            unit=activation is not False,
        )

    def classify(self, ids: Sequence[int], activation: bool | None) -> list[float]:
        """Returns each class's probability, or its logit in [-4, 4) without activation.

        Pseudorandom: the same tokens have the same result. A single class has the sigmoid, a score.
        """
        drawn = blake2b(str(list(ids)).encode(), digest_size=4 * self.classes).digest()
        numbers = struct.unpack(f">{self.classes}I", drawn)
        logits = [LOGIT_RANGE * (number / 2**32 - 0.5) for number in numbers]
        if activation is False:
            return logits
        if len(logits) == 1:
            return [sigmoid(logits[0])]
        weights = [math.exp(logit) for logit in logits]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    def pool(
        self, task: str, ids: Sequence[int], activation: bool | None
    ) -> Iterator[array[float]]:
        """Yields the output of `task`, one of `TASKS`.

        That is one row for the text, or one for each token.
        """
        is_by_token = task.startswith("token")
        if task.endswith("embed"):
            tokenizer = self.tokenizer
            for text in tokenizer.token_texts(ids) if is_by_token else [tokenizer.decode(ids)]:
                yield self.vector(text, activation)
            return
        parts = [ids]
        if is_by_token:
            parts = [[token_id] for token_id in ids]
        for part in parts:
            yield array("f", self.classify(part, activation))
            self.pace()

    def chunk_vectors(
        self, ids: Sequence[int], chunk_size: int, activation: bool | None
    ) -> Iterator[array[float]]:
        """Yields the mean of the vectors of the tokens of each chunk, of length 1 by default."""
        texts = self.tokenizer.token_texts(ids)
        for start, end in chunk_ranges(len(ids), chunk_size):
            yield mean_embedding(
                texts[start:end],
                self.dimensions,
                self.pace,
                known_features=self.known_features,
                unit=activation is not False,
            )

    def numbers(self, task: str, tokens: int) -> int:
        """Returns how many numbers the output of `task` has for a text of `tokens` tokens."""
        width = self.classes
        if task.endswith("embed"):
            width = self.dimensions
        if task.startswith("token"):
            width *= tokens
        return width


class Bag:
    """The tokens of a text, without their order."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.counts = Counter(ids)
        self.length = math.sqrt(sum(count * count for count in self.counts.values()))


def logit(query: Bag, document: Bag) -> float:
    """Returns the match of two texts before a cross-encoder's activation, from -4 to 4.

    It is the cosine of their counts, shifted and stretched.
    """
    few, many = sorted((query.counts, document.counts), key=len)
    shared = sum(count * many[token] for token, count in few.items())
    cosine = 0.0
    if shared:
        cosine = min(1.0, shared / (query.length * document.length))
    return LOGIT_RANGE * (cosine - 0.5)


def sigmoid(logit: float) -> float:
    """Returns the probability of a logit."""
    return 1 / (1 + math.exp(-logit))


def packing(dtype: str, endianness: str, pace: Pace) -> Pack:
    """Returns a function that packs numbers as `dtype`, byte order native, big or little."""
    if endianness == "native":
        endianness = sys.byteorder
    order = ">"
    if endianness == "little":
        order = "<"
    letter = LETTERS.get(dtype, "B")

    def pack(numbers: array[float]) -> bytes:
        pace()
        values: Sequence[float] = numbers
        if dtype in SMALL:
            values = small_floats(numbers, *SMALL[dtype])
        return struct.pack(f"{order}{len(values)}{letter}", *values)

    return pack


def small_floats(numbers: array[float], exponent_bits: int, mantissa_bits: int) -> list[int]:
    """Returns the codes of the nearest floating point numbers of these bits and a sign.

    Ties go to the even number. The numbers must be finite 32-bit numbers within the range of the
    format, which has fewer bits of mantissa.
    """
    bias = (1 << exponent_bits - 1) - 1
    smallest_normal = 2.0 ** (1 - bias)
    steps_of_one = 2.0 ** (bias - 1 + mantissa_bits)
    dropped = 23 - mantissa_bits
    below_half = (1 << dropped - 1) - 1
    rebias = (127 - bias) << mantissa_bits
    sign_shift = exponent_bits + mantissa_bits
    codes = []
    for number, bits in zip(numbers, array("I", numbers.tobytes()), strict=True):
        sign = bits >> 31 << sign_shift
        magnitude = bits & 0x7FFF_FFFF
        if -smallest_normal < number < smallest_normal:
            codes.append(sign | round(abs(number) * steps_of_one))
        else:  # a carry out of the mantissa is a step of the exponent, as it should be
            rounded = magnitude + below_half + (magnitude >> dropped & 1) >> dropped
            codes.append(sign | rounded - rebias)
    return codes
