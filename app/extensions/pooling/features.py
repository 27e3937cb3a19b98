"""Features of texts, and their sums at the places of a vector.

Start with `KnownFeatures`. Each word, and each three characters of a word, is a feature with a
weight. A hash gives each feature one place and a sign in every block of the vector.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import TypeAlias
from unicodedata import normalize

from app.core.text.memo import LimitedDict, RecentKeys

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
NUMBERS = Struct("<16I")
"""A hash as 16 numbers, one for each block of the longest vector."""
MINUS = 1 << 31
"""Bit of a hash that is the sign of a feature."""
PLACES_BYTES = 3 << 20
"""Most memory of remembered places, those of 4,000 features: most texts share frequent words."""
FEATURE_BYTES = 350
"""Memory of a remembered feature beside its places; measured."""
PLACE_BYTES = 40
"""Memory of a place of a feature, an upper bound: small numbers are shared."""
WORDS_BYTES = 6 << 20
"""Maximum memory of remembered words: about 1,500 words."""
WORD_BYTES = 700
WORD_FEATURE_BYTES = 170
"""Memory of a remembered word, and of each of its features beside their places; measured."""
PACED_WORDS = 8
PACED_FEATURES = 32
"""Words, and features, that are added without a pause, about 50 us of work."""
Places: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The places in a vector where a feature adds its weight, then where it subtracts its weight."""
Pace = Callable[[], None]
"""Called between parts of long work; gives other requests a turn when one is due."""


class Blocks:
    """The blocks of a vector of `dimensions` numbers; the last one may be cut."""

    def __init__(self, dimensions: int) -> None:
        self.sizes = [FIRST_BLOCK]
        places = FIRST_BLOCK
        while places < dimensions:
            self.sizes.append(places)
            places *= 2
        self.size_by_place = [size for size in self.sizes for _ in range(size)]
        """Size of the block of each place."""


blocks_of = lru_cache(maxsize=16)(Blocks)
"""Returns the blocks of a vector of so many numbers."""


class KnownPlaces(LimitedDict[tuple[str, int], Places]):
    """The places of features, by their text and the dimensions of the vector.

    Looking up an unknown feature computes and remembers its places.
    """

    def __init__(self, limit_bytes: int = PLACES_BYTES) -> None:
        super().__init__(limit_bytes)

    def __missing__(self, key: tuple[str, int]) -> Places:
        places = feature_places(*key)
        self.add(key, places, FEATURE_BYTES + PLACE_BYTES * len(blocks_of(key[1]).sizes))
        return places


@dataclass(frozen=True, slots=True)
class KnownWord:
    """The features of a word that occurs once in a text."""

    squares: Mapping[str, int]
    """Square of the weight of each feature."""
    sums: Sequence[tuple[int, int]]
    """Places, and the sum of the weights of the features at each."""


class KnownWords(LimitedDict[tuple[str, int], KnownWord]):
    """Frequent words, by their text and the dimensions; remembered from their second use."""

    def __init__(self, limit_bytes: int = WORDS_BYTES) -> None:
        super().__init__(limit_bytes)
        self._seen = RecentKeys()

    def clear(self) -> None:
        """Forgets also which words have been used once: too many words are frequent."""
        super().clear()
        self._seen = RecentKeys()

    def is_frequent(self, word: str) -> bool:
        """Returns whether the word has been used before, from then on True."""
        return len(word) <= MAX_WORD and self._seen.has(word)


class KnownFeatures:
    """Adds up the features of texts, and remembers those of frequent words."""

    def __init__(self, places_bytes: int = PLACES_BYTES, words_bytes: int = WORDS_BYTES) -> None:
        self.places = KnownPlaces(places_bytes)
        self.words = KnownWords(words_bytes)

    def __len__(self) -> int:
        return len(self.places) + len(self.words)

    @property
    def size_bytes(self) -> int:
        """Estimated memory in use."""
        return self.places.size_bytes + self.words.size_bytes

    @property
    def limit_bytes(self) -> int:
        """Estimated memory when full."""
        return self.places.limit_bytes + self.words.limit_bytes

    def sums(self, text: str, dimensions: int, pace: Pace) -> dict[int, int]:
        """Returns the sum of the weights of a text's features, for each place that has features.

        Calls `pace` between parts. Four times as many occurrences of a feature double its weight.
        """
        sums: dict[int, int] = {}
        sum_at = sums.get
        known_squares: dict[str, int] = {}
        other_squares: dict[str, int] = {}
        words = Counter(WORD.findall(normalize("NFKC", text).casefold()))
        for number, (word, count) in enumerate(words.items()):
            known_word = self.words.get((word, dimensions))
            if known_word is None and self.words.is_frequent(word):
                known_word = self._learn(word, dimensions)
            # The weight of a feature of several words is not the sum of its weights.
            if (
                known_word is not None
                and count == 1
                and known_squares.keys().isdisjoint(known_word.squares)
            ):
                known_squares.update(known_word.squares)
                for place, weight in known_word.sums:
                    sums[place] = sum_at(place, 0) + weight
            else:
                add_squares(other_squares, word, count)
            if number % PACED_WORDS == PACED_WORDS - 1:
                pace()
        for number, (feature, square) in enumerate(other_squares.items()):
            known_square = known_squares.get(feature)
            weight = weight_of(square)
            if known_square is not None:
                weight = weight_of(known_square + square) - weight_of(known_square)
            self._add(sums, feature, dimensions, weight)
            if number % PACED_FEATURES == PACED_FEATURES - 1:
                pace()
        return sums

    def _learn(self, word: str, dimensions: int) -> KnownWord:
        """Remembers a word, and returns it."""
        squares: dict[str, int] = {}
        add_squares(squares, word, 1)
        sums: dict[int, int] = {}
        for feature, square in squares.items():
            self._add(sums, feature, dimensions, weight_of(square))
        known_word = KnownWord(squares, tuple(sums.items()))
        sums_bytes = 2 * PLACE_BYTES * len(sums)
        size_bytes = WORD_BYTES + WORD_FEATURE_BYTES * len(squares) + sums_bytes
        self.words.add((word, dimensions), known_word, size_bytes)
        return known_word

    def _add(self, sums: dict[int, int], feature: str, dimensions: int, weight: int) -> None:
        plus, minus = self.places[feature, dimensions]
        for place in plus:
            sums[place] = sums.get(place, 0) + weight
        for place in minus:
            sums[place] = sums.get(place, 0) - weight


def weight_of(square: int) -> int:
    """Returns the weight of a feature from its square, in parts of a unit."""
    return math.isqrt(ROOTS * ROOTS * square)


def add_squares(squares: dict[str, int], word: str, count: int) -> None:
    """Adds the squares of the weights of the features of a word that occurs `count` times."""
    if word in COMMON_WORDS or len(word) < GRAM and word.isascii():
        squares[word] = squares.get(word, 0) + COMMON_WEIGHT * COMMON_WEIGHT * count
        return
    if len(word) <= MAX_WORD:
        squares[word] = squares.get(word, 0) + WORD_WEIGHT * WORD_WEIGHT * count
    if len(word) > 1:
        marked = f"<{word}>"
        for place in range(len(marked) - GRAM + 1):
            gram = "=" + marked[place : place + GRAM]
            squares[gram] = squares.get(gram, 0) + GRAM_WEIGHT * GRAM_WEIGHT * count


def feature_places(feature: str, dimensions: int) -> Places:
    """Returns the places where a feature adds its weight, then where it subtracts its weight."""
    plus = []
    minus = []
    start = 0
    drawn = NUMBERS.unpack(blake2b(feature.encode("utf-8", "surrogatepass")).digest())
    for number, size in zip(drawn, blocks_of(dimensions).sizes, strict=False):
        place = start + (number & (size - 1))
        start += size
        if place >= dimensions:
            break
        if number & MINUS:
            minus.append(place)
        else:
            plus.append(place)
    return tuple(plus), tuple(minus)
