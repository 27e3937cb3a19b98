"""The positional parameters of a script: `$1`, `"$@"`, `"${@:2}"`, `$#`, `shift` and `set --`.

Control flow is not interpreted, so a script that changes its parameters in a loop or a condition,
or that has functions, has unknown parameters from there on. Start reading at `Parameters`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from workbench.check.sources import MAX_WORDS, Word
from workbench.check.text import Text

_WHOLE = re.compile(
    r"\$(?:(?P<all>[@*])|\{(?P<braced>[@*])(?::(?P<first>\d{1,4})(?::(?P<count>\d{1,4}))?)?\}"
    r"|(?P<digit>\d)|\{(?P<number>\d{1,4})\})"
)
_NAME = re.compile(r"\d{1,4}|[@*#]")
_FUNCTION = re.compile(
    r"^[ \t]*(?:function[ \t]|[\w-]{1,100}[ \t]*\([ \t]*\))|;[ \t]*\w{1,100}\(\)", re.M
)
_FLOW = re.compile(r"\b(?:while|until|for|case|if|select)\b")
_SHELL_CODE = re.compile(r"-[A-Za-z]{0,10}c[A-Za-z]{0,10}")
MAX_CHANGES = 500
"""Most uses of `shift` and `set` in a script; after more, the parameters are not known."""


class Parameters:
    """Words behind a script, which `shift` and `set` change."""

    def __init__(self, words: Iterable[Word] | None = None) -> None:
        """`words` begin with `$0`; None if they are not known."""
        self._words: list[Word] | None = None
        if words is not None:
            self._words = list(words)[: 2 * MAX_WORDS]
        self._changes = 0
        self._has_flow = False
        self._is_joined = False
        self._joined: str | None = None
        """The text of `$*`; None if a word is not known."""

    def enter(self, text: Text) -> None:
        """Notes a script that is about to be read."""
        if _FUNCTION.search(text.text) is not None:
            self._words = None
            self._changes = MAX_CHANGES
        self._has_flow = self._has_flow or _FLOW.search(text.text) is not None

    def change(self, words: list[Word]) -> bool:
        """Runs `shift` or `set`; returns whether the parameters are known afterwards."""
        self._is_joined = False
        if words[0].text == "set" and not _sets_parameters(words):
            return False
        self._changes += 1
        if self._has_flow or self._changes > MAX_CHANGES:
            self._words = None
        elif words[0].text == "set":
            start = next(k for k, word in enumerate(words) if k and _ends_flags(word))
            if words[start].text == "--":
                start += 1
            self._words = [words[0], *words[start:]]
        elif self._words is not None:
            self._shift(words)
        return self._words is not None

    def _shift(self, words: list[Word]) -> None:
        assert self._words is not None
        count = 1
        if len(words) > 1:
            text = words[1].text
            if words[1].unknown or not (text.isascii() and text.isdecimal() and len(text) < 5):
                self._words = None
                return
            count = int(text)
        if count < len(self._words):  # otherwise the shell refuses, and keeps the words
            self._words = [self._words[0], *self._words[1 + count :]]

    def words_of(self, word: Word) -> list[Word] | None:
        """Returns what a word stands for that is only parameters; None for another word."""
        if self._words is None:
            return None
        match = _WHOLE.fullmatch(word.text)
        if match is None:
            return None
        number = match["digit"] or match["number"]
        if number is not None:
            chosen = self._words[int(number) : int(number) + 1]
            if not chosen and word.is_quoted:
                return [replace(word, text="", unknown="")]
        elif word.is_quoted and (match["all"] or match["braced"]) == "*":
            return None
        else:
            chosen = self._part(match["first"], match["count"])
        if word.is_quoted:
            return chosen
        return [piece for parameter in chosen for piece in _split(parameter)]

    def _part(self, first: str | None, count: str | None) -> list[Word]:
        assert self._words is not None
        start = 1
        if first is not None:
            start = int(first)
        if count is None:
            return self._words[start:]
        return self._words[start : start + int(count)]

    def text_of(self, name: str, default: str | None) -> str | None:
        """Returns the text of a parameter such as `1` or `#`; `default` if it is not known."""
        if self._words is None or _NAME.fullmatch(name) is None:
            return default
        if name == "#":
            return str(len(self._words) - 1)
        if name in "@*":
            return self._all()
        number = int(name)
        if number >= len(self._words):
            return default or ""
        word = self._words[number]
        if word.unknown:
            return None
        return word.text or default or ""

    def _all(self) -> str | None:
        assert self._words is not None
        if not self._is_joined:
            self._is_joined = True
            self._joined = None
            words = self._words[1:]
            if not any(word.unknown for word in words):
                self._joined = " ".join(word.text for word in words)
        return self._joined


def split_shell(words: list[Word]) -> tuple[Word, list[Word]] | None:
    """Returns the script of `bash -c SCRIPT NAME ARGUMENT...`, and the words behind it."""
    for index, word in enumerate(words[1:], start=1):
        if not word.text.startswith(("-", "+")):
            return None
        if _SHELL_CODE.fullmatch(word.text) is None:
            continue
        script_index = index + 1
        while script_index < len(words) and words[script_index].text.startswith("-"):
            script_index += 1
        if script_index < len(words):
            return words[script_index], words[script_index + 1 :]
    return None


def _split(word: Word) -> list[Word]:
    if " " not in word.text or word.unknown:
        return [word]
    return [replace(word, text=piece, content=None) for piece in word.text.split()]


def _sets_parameters(words: list[Word]) -> bool:
    return any(_ends_flags(word) for word in words[1:]) and not _is_option_name(words)


def _is_option_name(words: list[Word]) -> bool:
    """Returns whether the only word of `set` without a dash is the value of `-o`."""
    names = [word.text for word in words[1:]]
    flags = names[0].startswith(("-", "+")) and names[0].endswith("o")
    return flags and "--" not in names


def _ends_flags(word: Word) -> bool:
    return word.text == "--" or not word.text.startswith(("-", "+"))
