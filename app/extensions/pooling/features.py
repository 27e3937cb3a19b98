"""Features of texts, and their sums at the places of a vector.

Start with `KnownFeatures`. Each word, and each three characters of a word, is a feature with a
weight. A hash gives each feature one place and a sign in every block of the vector.

A place counts by the root of the size of its block. Sizes are powers of two, and so are the roots
of *even* powers; those of *odd* powers have the root of two as another factor. So sums are whole
numbers that include the powers of two, apart for odd and even blocks.
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
from typing import NamedTuple, TypeAlias
from unicodedata import normalize

from app.core.base.caches import LimitedDict, RecentKeys

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
PLACE_BYTES = 100
"""Memory of a place of a feature with its factor, an upper bound."""
WORDS_BYTES = 6 << 20
"""Maximum memory of remembered words: about 1,300 words."""
WORD_BYTES = 700
WORD_FEATURE_BYTES = 170
"""Memory of a remembered word, and of each of its features beside their places; measured."""
PACED_WORDS = 8
PACED_FEATURES = 32
"""Words, and features, that are added without a pause, about 50 us of work."""
PlaceValues: TypeAlias = tuple[tuple[int, int], ...]
"""Places in a vector with values."""
Pace = Callable[[], None]
"""Called between parts of long work; gives other requests a turn when one is due."""


class Block(NamedTuple):
    """A block of a vector."""

    start: int
    size: int
    factor: int
    """Greatest power of two that divides the root of the size."""
    is_odd: bool
    """The size is an odd power of two."""


@lru_cache(maxsize=16)
def blocks_of(dimensions: int) -> list[Block]:
    """Returns the blocks of a vector of so many numbers; the last one may be cut."""
    blocks: list[Block] = []
    start = 0
    while start < dimensions:
        size = max(start, FIRST_BLOCK)
        exponent = size.bit_length() - 1
        blocks.append(Block(start, size, factor=1 << exponent // 2, is_odd=exponent % 2 == 1))
        start += size
    return blocks


class Places(NamedTuple):
    """The places of a feature, and the factors of its weight there."""

    odd: PlaceValues
    even: PlaceValues


class Sums(NamedTuple):
    """Sums of weights by place, in odd and in even blocks."""

    odd: dict[int, int]
    even: dict[int, int]


class KnownPlaces(LimitedDict[tuple[str, int], Places]):
    """The places of features, by their text and the dimensions of the vector.

    Looking up an unknown feature computes its places, and remembers them from their second use.
    """

    def __init__(self, limit_bytes: int = PLACES_BYTES) -> None:
        super().__init__(limit_bytes)
        self._seen = RecentKeys()

    def __missing__(self, key: tuple[str, int]) -> Places:
        feature, dimensions = key
        places = feature_places(feature, dimensions)
        if self._seen.has(feature):
            place_bytes = PLACE_BYTES * len(blocks_of(dimensions))
            self.add(key, places, FEATURE_BYTES + place_bytes)
        return places


@dataclass(frozen=True, slots=True)
class KnownWord:
    """The features of a word that occurs once in a text."""

    squares: Mapping[str, int]
    """Square of the weight of each feature."""
    odd_sums: PlaceValues
    even_sums: PlaceValues
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
    def full_limit_bytes(self) -> int:
        """Memory limit at which both caches work well."""
        return self.places.full_limit_bytes + self.words.full_limit_bytes

    @property
    def limit_bytes(self) -> int:
        """Estimated memory when full."""
        return self.places.limit_bytes + self.words.limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        for cache in (self.places, self.words):
            cache.limit_bytes = limit_bytes * cache.full_limit_bytes // self.full_limit_bytes

    def shrink(self) -> None:
        """Removes all features."""
        self.places.clear()
        self.words.clear()

    def sums(self, text: str, dimensions: int, pace: Pace) -> Sums:
        """Returns the sums of the weights of a text's features.

        Calls `pace` between parts. Four times as many occurrences of a feature double its weight.
        """
        odd_sums: dict[int, int] = {}
        even_sums: dict[int, int] = {}
        odd_sum_at = odd_sums.get
        even_sum_at = even_sums.get
        used_words: list[KnownWord] = []
        used_features: set[str] = set()
        other_squares: dict[str, int] = {}
        words = counted(WORD.findall(normalize("NFKC", text).casefold()))
        for number, (word, count) in enumerate(words.items()):
            known_word = self.words.get((word, dimensions))
            if known_word is None and self.words.is_frequent(word):
                known_word = self._learn(word, dimensions, pace)
            # The weight of a feature of several words is not the sum of its weights.
            if (
                known_word is not None
                and count == 1
                and used_features.isdisjoint(known_word.squares)
            ):
                used_words.append(known_word)
                used_features.update(known_word.squares)
                for place, weight in known_word.odd_sums:
                    odd_sums[place] = odd_sum_at(place, 0) + weight
                for place, weight in known_word.even_sums:
                    even_sums[place] = even_sum_at(place, 0) + weight
            else:
                add_squares(other_squares, word, count)
            if number % PACED_WORDS == PACED_WORDS - 1:
                pace()
        known_squares: dict[str, int] = {}
        if not used_features.isdisjoint(other_squares):
            for known_word in used_words:
                known_squares.update(known_word.squares)
        sums = Sums(odd_sums, even_sums)
        self._add_features(sums, other_squares, known_squares, dimensions=dimensions, pace=pace)
        return sums

    def _add_features(
        self,
        sums: Sums,
        squares: Mapping[str, int],
        known_squares: Mapping[str, int],
        *,
        dimensions: int,
        pace: Pace,
    ) -> None:
        """Adds features with these squares to sums that include others of `known_squares`."""
        odd_sums, even_sums = sums
        odd_sum_at = odd_sums.get
        even_sum_at = even_sums.get
        for number, (feature, square) in enumerate(squares.items()):
            weight = weight_of(square)
            if feature in known_squares:
                known_square = known_squares[feature]
                weight = weight_of(known_square + square) - weight_of(known_square)
            odd_places, even_places = self.places[feature, dimensions]
            for place, factor in odd_places:
                odd_sums[place] = odd_sum_at(place, 0) + factor * weight
            for place, factor in even_places:
                even_sums[place] = even_sum_at(place, 0) + factor * weight
            if number % PACED_FEATURES == PACED_FEATURES - 1:
                pace()

    def _learn(self, word: str, dimensions: int, pace: Pace) -> KnownWord:
        """Remembers a word, and returns it."""
        squares: dict[str, int] = {}
        add_squares(squares, word, 1)
        sums = Sums({}, {})
        self._add_features(sums, squares, {}, dimensions=dimensions, pace=pace)
        known_word = KnownWord(
            squares, odd_sums=tuple(sums.odd.items()), even_sums=tuple(sums.even.items())
        )
        sums_bytes = PLACE_BYTES * (len(sums.odd) + len(sums.even))
        size_bytes = WORD_BYTES + WORD_FEATURE_BYTES * len(squares) + sums_bytes
        self.words.add((word, dimensions), known_word, size_bytes)
        return known_word


def counted(words: Sequence[str]) -> Mapping[str, int]:
    """Returns the number of occurrences of each word, in order of the first ones."""
    counts = dict.fromkeys(words, 1)
    if len(counts) == len(words):  # as in most short texts
        return counts
    return Counter(words)


@lru_cache(maxsize=256)
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
    """Returns the places of a feature in a vector of so many numbers."""
    odd: list[tuple[int, int]] = []
    even: list[tuple[int, int]] = []
    drawn = NUMBERS.unpack(blake2b(feature.encode("utf-8", "surrogatepass")).digest())
    for number, (start, size, factor, is_odd) in zip(drawn, blocks_of(dimensions), strict=False):
        place = start + (number & (size - 1))
        if place >= dimensions:
            break
        if number & MINUS:
            factor = -factor
        if is_odd:
            odd.append((place, factor))
        else:
            even.append((place, factor))
    return Places(tuple(odd), tuple(even))
