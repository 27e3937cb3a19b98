"""The vector of a text: of length 1, near that of a text with the same words and characters, far from others.

Each word, and each three characters of one, is a feature with a weight. A feature stands at one place of
every block of the vector, with a sign, by its hash; so the cosine of two texts is the share of the weight
that they have in common, but for chance meetings of about 1 / sqrt(dimensions). Sums are of whole numbers,
and roots and quotients are as IEEE has them: a text has the same vector on every machine.

A shorter vector is the beginning of a longer one, before it is given its length. As each block is as long as
all before it, the shortest vectors know all features too.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from operator import mul
from struct import Struct
from unicodedata import normalize

from app.pooling.numbers import Turns

WIDE = "\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of East Asia: a word each, as there are no spaces between words."""
WORD = re.compile(rf"[{WIDE}]|[^\W{WIDE}]+|[^\w\s]")
GRAM = 3
"""Characters of the pieces of a word."""
COMMON = (
    "all and any are but can did does for from had has have her him his how its not our she that the their "
    "them then there they this was were what when which who why will with would you your"
)
COMMON_WORDS = frozenset(COMMON.split())
"""These, and words of two letters or one, are in all texts and say little."""
WORD_WEIGHT, COMMON_WEIGHT, GRAM_WEIGHT = 20, 4, 11
ROOTS = 16
"""Weights are counted in so many parts."""
LONGEST_WORD = 64
"""Of longer ones only pieces count."""
PIECE = 4096
"""Characters that are looked at between two pauses."""
AT_ONCE = 32
"""Features that are added between two pauses."""
FEATURE = 12
"""What a feature costs, in `Turns`."""
FIRST_BLOCK = 8
"""Places of the first block. Each of the others is as long as all before it."""
NUMBERS = Struct("<16I")
"""A hash as numbers, one for each block of the longest vector."""
MINUS = 1 << 31

Block = tuple[int, int]
"""First place, and how many."""


def embedding(text: str, dimensions: int, turns: Turns, unit: bool = True) -> array[float]:
    """The vector of `text` with 1 to 2**18 numbers, of length 1 unless that is not wanted. May pause."""
    blocks = list(_blocks(dimensions))
    sums = [0] * sum(blocks[-1])
    found = iter(features(text, turns).items())
    while part := list(islice(found, AT_ONCE)):
        for feature, weight in part:
            _add(sums, blocks, feature, weight)
        turns.spend(len(part) * FEATURE)
    del sums[dimensions:]
    if not any(sums):
        sums[0] = 1
    turns.spend(dimensions)
    return _scaled(sums, blocks, unit)


def features(text: str, turns: Turns) -> Mapping[str, int]:
    """What is in the text, and how much each counts: twice as much for four times as often."""
    words: Counter[str] = Counter()
    for piece in _pieces(text):
        words.update(WORD.findall(normalize("NFKC", piece).casefold()))
        turns.spend(len(piece))
    squares: Counter[str] = Counter()
    each = iter(words.items())
    while part := list(islice(each, AT_ONCE)):
        for word, count in part:
            for feature, weight in _of_word(word):
                squares[feature] += weight * weight * count
        turns.spend(sum(FEATURE + 2 * len(word) for word, _ in part))
    return {feature: math.isqrt(ROOTS * ROOTS * square) for feature, square in squares.items()}


def _pieces(text: str) -> Iterator[str]:
    """The text in parts that end between words, where there are any."""
    start = 0
    while start < len(text):
        end = start + PIECE
        if end < len(text):
            end = text.rfind(" ", start, end) + 1 or end
        yield text[start:end]
        start = end


def _of_word(word: str) -> Iterator[tuple[str, int]]:
    """A word and its pieces, with their weights."""
    if word in COMMON_WORDS or len(word) < GRAM and word.isascii():
        yield word, COMMON_WEIGHT
        return
    if len(word) <= LONGEST_WORD:
        yield word, WORD_WEIGHT
    marked = f"<{word}>" if len(word) > 1 else ""
    for start in range(len(marked) - GRAM + 1):
        yield "=" + marked[start : start + GRAM], GRAM_WEIGHT


def _blocks(dimensions: int) -> Iterator[Block]:
    start, size = 0, FIRST_BLOCK
    while start < dimensions:
        yield start, size
        start += size
        size = start


def _add(sums: list[int], blocks: Sequence[Block], feature: str, weight: int) -> None:
    """Put a feature at its place in each block."""
    drawn = NUMBERS.unpack(blake2b(feature.encode("utf-8", "surrogatepass")).digest())
    for (start, size), number in zip(blocks, drawn, strict=False):
        sums[start + (number & (size - 1))] += -weight if number & MINUS else weight


def _scaled(sums: Sequence[int], blocks: Sequence[Block], unit: bool) -> array[float]:
    """The numbers, each by the size of its block: those of a small one would be more than the others."""
    parts = [sums[start : start + size] for start, size in blocks]
    squares = sum(size * sum(map(mul, part, part)) for (_, size), part in zip(blocks, parts, strict=True))
    length = math.sqrt(squares) if unit else float(ROOTS * WORD_WEIGHT)
    vector = array("f")
    for (_, size), part in zip(blocks, parts, strict=True):
        by = math.sqrt(size) / length
        vector.extend([number * by for number in part])
    return vector
