"""Splits texts and names of tools into words that can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import filterfalse
from typing import Final

WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
"""A word of a text or of an identifier: getUserName and get_user_name have three."""
_COMMON = (
    "a about all also an and any are as at be been but by can could did do does for from "
    "given has have her him his how i if in into is it its like me my need no not of on "
    "one or our please she should so some such tell than that the their them then there "
    "these they this to up us using value want was we were what when where which who why "
    "will with would you your answer ask call called current data default execute fetch "
    "find function functions get gets give hello help hi input invoke know make name new "
    "now object output parameter perform provide query request result return returns run "
    "see set show some string text tool tools type use used user "
)
COMMON_WORDS: Final = frozenset(_COMMON.split())
"""Words that ask for no certain tool, in questions or in names of tools."""
SUFFIXES: Final = ("ing", "es", "ed", "s", "e")
MIN_STEM: Final = 3
"""Fewest letters of a word without its suffix."""


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case."""
    return list(map(str.lower, WORD.findall(text)))


def stem(word: str) -> str:
    """Returns a word without its ending: `adds` and `adding` are `add`."""
    if word.endswith(SUFFIXES):
        for suffix in SUFFIXES:
            if word.endswith(suffix) and len(word) - len(suffix) >= MIN_STEM:
                return word.removesuffix(suffix)
    return word


def significant_stems(words: Iterable[str]) -> frozenset[str]:
    """Returns the stems of all words that are not common."""
    return frozenset(map(stem, filterfalse(COMMON_WORDS.__contains__, words)))
