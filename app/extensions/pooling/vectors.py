"""The simulated pooling model: vectors of texts; class probabilities and scores from their tokens.

Vectors have length 1. Texts with the same words and characters have near vectors, other texts
distant ones.

Each word, and each three characters of a word, is a feature with a weight. A hash gives each
feature one place and a sign in every block of the vector. The cosine of two texts is the share of
weight that they have in common, but for hash collisions of about 1 / sqrt(dimensions). Sums are of
whole numbers, and roots and quotients follow IEEE 754: a text has the same vector on every machine.

A shorter vector is the beginning of a longer one, before scaling to its length. As each block is as
long as all before it, the shortest vectors contain all features too.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import compress
from operator import mul
from typing import TypeAlias
from unicodedata import normalize

from app.core.text.base import Tokenizer
from app.core.text.memo import LimitedDict

WIDE = "\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
"""East Asian characters: each counts as a word, as no spaces separate words."""
WORD = re.compile(rf"[{WIDE}]|[^\W{WIDE}]+|[^\w\s]")
GRAM = 3
"""Characters of a word's pieces."""
COMMON = (
    "all and any are but can did does for from had has have her him his how its not our she that "
    "the their them then there they this was were what when which who why will with would you your"
)
COMMON_WORDS = frozenset(COMMON.split())
"""Frequent words, which weigh little; so do words of one or two ASCII letters."""
WORD_WEIGHT = 20
COMMON_WEIGHT = 4
GRAM_WEIGHT = 11
ROOTS = 16
"""Parts of a unit of weight; keeps sums of roots whole numbers."""
MAX_WORD = 64
"""Maximum characters of a word that is a feature itself; of longer words only pieces count."""
FIRST_BLOCK = 8
"""Places in the first block. Each later block is as long as all before it."""
NUMBERS = struct.Struct("<16I")
"""A hash as 16 numbers, one for each block of the longest vector."""
MINUS = 1 << 31
"""Bit of a hash that is the sign of a feature."""
PLACES_BYTES = 3 << 20
"""Most memory of remembered places, those of 4,000 features: most texts share frequent words."""
FEATURE_BYTES = 350
"""Memory of a remembered feature beside its places; measured."""
PLACE_BYTES = 40
"""Memory of a place of a feature, an upper bound: small numbers are shared."""
PACED_FEATURES = 32
"""Features that are added without a pause, about 50 us of work."""
FLOAT_BYTES = 4
TASKS = ("embed", "classify", "token_embed", "token_classify")
"""Outputs for a text, or for each of its tokens."""
LOGIT_RANGE = 8.0
"""Logits, of classes and of pairs, are between -4 and 4."""
LETTERS: Mapping[str, str] = {"float32": "f", "float16": "e", "bfloat16": "H"}
"""Codes of `struct`; B for others."""
SMALL: Mapping[str, tuple[int, int]] = {"bfloat16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
"""Bits of exponent and of mantissa of formats that Python does not know."""
Pack = Callable[["array[float]"], bytes]
Places: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The places in a vector where a feature adds its weight, then where it subtracts its weight."""
Pace = Callable[[], None]
"""Called between parts of long work; gives other requests a turn when one is due."""


class KnownPlaces(LimitedDict[tuple[str, int], Places]):
    """The places of features, by their text and the number of blocks.

    Looking up an unknown feature computes and remembers its places.
    """

    def __init__(self, limit_bytes: int = PLACES_BYTES) -> None:
        super().__init__(limit_bytes)

    def __missing__(self, key: tuple[str, int]) -> Places:
        places = feature_places(*key)
        self.add(key, places, FEATURE_BYTES + PLACE_BYTES * key[1])
        return places


def embedding(
    text: str,
    dimensions: int,
    pace: Pace,
    *,
    known_places: KnownPlaces,
    unit: bool = True,
) -> array[float]:
    """Returns the vector of `text`, 1 to 2**18 numbers, of length 1 if `unit`.

    Calls `pace` between parts.
    """
    blocks = [(0, FIRST_BLOCK)]
    places = FIRST_BLOCK
    while places < dimensions:
        blocks.append((places, places))
        places *= 2
    sums = [0] * places
    weights = features(text, pace)
    block_count = len(blocks)
    for number, (feature, weight) in enumerate(weights.items()):
        plus, minus = known_places[feature, block_count]
        for place in plus:
            sums[place] += weight
        for place in minus:
            sums[place] -= weight
        if number % PACED_FEATURES == 0:
            pace()
    del sums[dimensions:]
    if not any(sums):
        sums[0] = 1
    length = float(ROOTS * WORD_WEIGHT)
    if unit:
        length = math.sqrt(sum_of_squares(sums, blocks))
    # Short texts leave most places of a vector at 0, so only the others are computed.
    vector = array("f", bytes(FLOAT_BYTES * dimensions))
    for start, size in blocks:
        factor = math.sqrt(size) / length
        for place in compress(range(start, start + size), sums[start : start + size]):
            vector[place] = sums[place] * factor
    return vector


def sum_of_squares(sums: Sequence[int], blocks: Sequence[tuple[int, int]]) -> int:
    """Returns the square of a vector's length, before scaling; a block is its start and size.

    Each number counts by the size of its block; otherwise small blocks would dominate.
    """
    squares = 0
    for start, size in blocks:
        numbers = list(filter(None, sums[start : start + size]))
        squares += size * sum(map(mul, numbers, numbers))
    return squares


def feature_places(feature: str, block_count: int) -> Places:
    """Returns the places where a feature adds its weight, then where it subtracts its weight."""
    plus = []
    minus = []
    start = 0
    size = FIRST_BLOCK
    drawn = NUMBERS.unpack(blake2b(feature.encode("utf-8", "surrogatepass")).digest())
    for number in drawn[:block_count]:
        place = start + (number & (size - 1))
        if number & MINUS:
            minus.append(place)
        else:
            plus.append(place)
        start += size
        size = start
    return tuple(plus), tuple(minus)


def features(text: str, pace: Pace) -> Mapping[str, int]:
    """Returns the weights of a text's words and pieces.

    Four times as many occurrences double a weight.
    """
    squares: dict[str, int] = {}
    for word, count in Counter(WORD.findall(normalize("NFKC", text).casefold())).items():
        if word in COMMON_WORDS or len(word) < GRAM and word.isascii():
            squares[word] = squares.get(word, 0) + COMMON_WEIGHT * COMMON_WEIGHT * count
        else:
            if len(word) <= MAX_WORD:
                squares[word] = squares.get(word, 0) + WORD_WEIGHT * WORD_WEIGHT * count
            if len(word) > 1:
                marked = f"<{word}>"
                for place in range(len(marked) - GRAM + 1):
                    gram = "=" + marked[place : place + GRAM]
                    squares[gram] = squares.get(gram, 0) + GRAM_WEIGHT * GRAM_WEIGHT * count
        pace()
    return {feature: math.isqrt(ROOTS * ROOTS * square) for feature, square in squares.items()}


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
    known_places: KnownPlaces = field(default_factory=KnownPlaces)

    def vector(
        self, text: str, activation: bool | None, dimensions: int | None = None
    ) -> array[float]:
        """Returns the vector of a text; `dimensions` replaces the model's own number."""
        size = dimensions or self.dimensions
        return embedding(
            text,
            size,
            self.pace,
            known_places=self.known_places,
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
