"""Reads the words of a command line. argparse is not used: 500 flags would slow each start.

Start reading at `read_placed_words`, which collects all flaws; `read_words` raises the first one.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from config.declaration import UsageError, shown, suggestion
from config.sources import IGNORED, REMOVED, FlagValues

SHORT_LENGTH = 2
"""Characters of a flag with one letter."""
_SHORT_FLAG = re.compile(r"-[A-Za-z][\w-]*(?:=|$)", re.ASCII)
"""A flag with one dash, unlike a negative number and a text with spaces."""


FlagRule = Literal[
    "known flag", "value required", "no value", "valid value", "valid JSON", "known field"
]
"""Rules of command lines."""


class FlagError(UsageError):
    """Raised for a flag of a command line."""

    def __init__(
        self,
        detail: str,
        *,
        form: str,
        rule: FlagRule | None = None,
        fix: str = "",
        subject: str = "flag",
        status: int = UsageError.status,
    ) -> None:
        super().__init__(f"{subject} {detail}")
        self.detail = " ".join(detail.split())
        """The message without its subject."""
        self.form = form
        """The flag, such as --port."""
        self.rule = rule
        """Rule that the flag breaks."""
        self.fix = fix
        """Name to write instead; empty if none is known."""
        self.status = status


class WrongValueError(ValueError):
    """Raised for the value of a flag; the message completes the sentence "the value ..."."""

    def __init__(
        self,
        flaw: str,
        *,
        rule: FlagRule = "valid value",
        fix: str = "",
        advice: str = "",
        brief: str = "",
    ) -> None:
        super().__init__(flaw + advice)
        self.flaw = flaw
        """The message without the advice at its end."""
        self.brief = brief or flaw
        """The flaw with a part of the valid names, if there are many."""
        self.advice = advice
        self.rule = rule
        self.fix = fix
        """Name to write instead; empty if none is known."""

    @classmethod
    def of(cls, error: ValueError) -> "WrongValueError":
        """Returns an error of this class with the message of any error."""
        return error if isinstance(error, cls) else cls(str(error))


class Flag(Struct, frozen=True, kw_only=True):
    """A flag: its forms, its values, and its line in the help."""

    name: str
    """Key of the value among the results; another name of a setting has another key."""
    forms: tuple[str, ...]
    takes: Literal["nothing", "maybe", "one", "any", "some"] = "one"
    """Number of words after the flag; `some` is one at least."""
    repeated: bool = False
    """Each flag adds items to one list."""
    const: str = "true"
    """Value without a word."""
    read: Callable[[str], object] = str
    """Raises ValueError, with the rule, for a wrong word."""
    metavar: str = ""
    help: str = ""
    """Empty for a flag that the help does not show."""


def read_words(
    words: Iterable[str], flags: Iterable[Flag], *, skips_unknown: bool = False
) -> tuple[FlagValues, list[str]]:
    """Returns values by name, and words that belong to no flag.

    Raises:
        UsageError: A flag is wrong, or unknown without `skips_unknown`.
    """
    flags = list(flags)
    result = read_placed_words(placed_words(words), flags, skips_unknown=skips_unknown)
    for flaw in result.flaws:
        if flaw.error.rule == "known flag":
            raise unknown_flag(flaw.error.form, [form for flag in flags for form in flag.forms])
        raise flaw.error
    return result.values, [word.text for word in result.others]


class PlacedWord(NamedTuple):
    """A word of a command line."""

    text: str
    positions: Sequence[int]
    """Numbers of the written words that it stands for: one, unless several were merged."""


class FlagFlaw(NamedTuple):
    """A mistake in a command line; its error has the form, the rule, and the fix."""

    error: FlagError
    option: str
    """Name of the flag; the form of an unknown one."""
    positions: Sequence[int]
    """Numbers of the words with the mistake, the flag first."""


class WordsRead(NamedTuple):
    """The result of `read_placed_words`."""

    values: FlagValues
    """By name, as if the words with a flaw were not there."""
    others: list[PlacedWord]
    """Words that belong to no flag."""
    flaws: list[FlagFlaw]
    """All flaws, in order."""
    positions: dict[str, list[int]]
    """Numbers of the words of each flag that was read, by name."""


def placed_words(words: Iterable[str]) -> Iterator[PlacedWord]:
    """Yields words with their numbers."""
    for number, word in enumerate(words):
        yield PlacedWord(word, (number,))


def read_placed_words(
    words: Iterable[PlacedWord],
    flags: Iterable[Flag],
    *,
    shortened: bool = False,
    skips_unknown: bool = False,
) -> WordsRead:
    """Reads a command line in one pass, to its end, and collects its flaws.

    `shortened` accepts beginnings of flags, and `--` before words that are no flags. An empty word
    that is not the value of a flag is ignored: manifests whose arguments come from templates pass
    such words. Words behind a flag with a flaw belong to it, up to the next flag.
    """
    reader = _WordReader(flags, shortened=shortened, skips_unknown=skips_unknown)
    reader.read(words)
    return WordsRead(reader.values, reader.others, reader.flaws, reader.positions)


class _WordReader:
    """The state of `read_placed_words`."""

    def __init__(self, flags: Iterable[Flag], *, shortened: bool, skips_unknown: bool) -> None:
        self._by_form = {form: flag for flag in flags for form in flag.forms}
        self._shortened = shortened
        self._skips_unknown = skips_unknown
        self._waiting: deque[PlacedWord] = deque()
        self.values: FlagValues = {}
        self.others: list[PlacedWord] = []
        self.flaws: list[FlagFlaw] = []
        self.positions: dict[str, list[int]] = {}

    def read(self, words: Iterable[PlacedWord]) -> None:
        """Reads all words."""
        self._waiting.extend(words)
        while self._waiting:
            word = self._waiting.popleft()
            if word.text == "--" and self._shortened:
                self.others += self._waiting
                return
            if word.text:
                self._read_word(word)

    def _read_word(self, word: PlacedWord) -> None:
        form, text = _split_flag(word.text, self._by_form)
        if form not in self._by_form:
            full_forms = full_forms_of(form, self._by_form) if self._shortened else []
            is_short = len(full_forms) == 1 and not self._skips_unknown
            if not is_short and (self._skips_unknown or not form.startswith("--")):
                self.others.append(word)
                return
            if len(full_forms) != 1:
                error = FlagError(f"{form} is unknown", form=form, rule="known flag")
                self._add_flaw(error, form, list(word.positions), has_text=text is not None)
                return
            form = full_forms[0]
        flag = self._by_form[form]
        positions = list(word.positions)
        try:
            if text is None:
                value_words = _next_values(flag, self._waiting, self._by_form)
                texts = [value.text for value in value_words]
                for value in value_words:
                    positions.extend(value.positions)
            else:
                texts = [text]
            _check_count(form, flag, len(texts), has_text=text is not None)
            self.values[flag.name] = _value(form, flag, texts, self.values.get(flag.name))
        except FlagError as error:
            self._add_flaw(error, flag.name, positions, has_text=text is not None)
        else:
            self.positions.setdefault(flag.name, []).extend(positions)

    def _add_flaw(
        self, error: FlagError, option: str, positions: list[int], *, has_text: bool
    ) -> None:
        """Adds a flaw, with the words behind the flag unless the flag itself has its value."""
        while not has_text and self._waiting and not self._waiting[0].text.startswith("-"):
            positions.extend(self._waiting.popleft().positions)
        self.flaws.append(FlagFlaw(error, option, positions))


def short_forms(full_form: str, forms: Iterable[str]) -> tuple[str, ...]:
    """Returns the spellings that `read_words` takes for `full_form` if it accepts beginnings.

    `forms` has the spellings of all flags.
    """
    others = [form for form in forms if form != full_form and form.startswith(full_form[:3])]
    spellings = [full_form]
    for length in range(3, len(full_form)):
        spelling = full_form[:length]
        if not any(form.startswith(spelling) for form in others):
            spellings.append(spelling)
    return tuple(spellings)


def value_required(form: str) -> FlagError:
    """Returns the error for a flag without a value."""
    return FlagError(f"{form} requires a value", form=form, rule="value required")


def unexpected_argument(word: str) -> UsageError:
    """Returns the error for a word that belongs to no flag."""
    return UsageError(f"unexpected argument {word!r}: settings must be written as --name value")


def unknown_flag(form: str, forms: Iterable[str], full_forms: Sequence[str] = ()) -> UsageError:
    """Returns the error for an unknown flag, with a similar one among `forms`.

    `full_forms` are the flags that begin with `form`, if flags may be abbreviated.
    """
    if len(full_forms) > 1:
        return UsageError(f"ambiguous option: {form} could match {', '.join(full_forms)}")
    names = [name for name in forms if name.lstrip("-") not in (*IGNORED, *REMOVED)]
    return UsageError(f"unknown flag {form}{suggestion(form, names)}")


def full_forms_of(form: str, forms: Iterable[str]) -> list[str]:
    """Returns the flags that begin with `form`: at least a letter behind one dash or two."""
    if not form.startswith("-") or not form.strip("-"):
        return []
    return sorted({full_form for full_form in forms if full_form.startswith(form)})


def _split_flag(word: str, by_form: Mapping[str, Flag]) -> tuple[str, str | None]:
    """Returns the flag, with dashes for underscores, and the value in the same word, if any.

    As in argparse, a flag of one letter may be joined with its value: `-qfp8`.
    """
    form, equals, text = word.partition("=")
    if form.startswith("--"):
        return form.replace("_", "-"), text if equals else None
    if form not in by_form and len(word) > SHORT_LENGTH:
        short = by_form.get(word[:SHORT_LENGTH])
        if short is not None and short.takes != "nothing":
            return word[:SHORT_LENGTH], word[SHORT_LENGTH:]
    return form, text if equals else None


def _check_count(form: str, flag: Flag, count: int, *, has_text: bool) -> None:
    """Raises FlagError for a flag with a value that takes none, or without one that needs one."""
    if has_text and flag.takes == "nothing":
        raise FlagError(f"{form} does not accept a value", form=form, rule="no value")
    if not count and flag.takes in ("one", "some"):
        raise value_required(form)


def _next_values(
    flag: Flag, waiting: deque[PlacedWord], by_form: Mapping[str, Flag]
) -> list[PlacedWord]:
    """Removes the values of a flag from the `waiting` words, and returns them.

    An empty word is a value of a flag that needs one (`--api-key ""`), but never of a switch.
    """
    if flag.takes == "nothing":
        return []
    is_list = flag.takes in ("any", "some")
    values: list[PlacedWord] = []
    while waiting and (is_list or not values):
        word = waiting[0].text
        if word.startswith("--") or _split_flag(word, by_form)[0] in by_form:
            break
        # As in argparse, -tp is no value of a list, even if only another table has the flag.
        if is_list and _SHORT_FLAG.match(word):
            break
        if not word and flag.takes == "maybe":
            break
        values.append(waiting.popleft())
    return values


def _value(
    form: str, flag: Flag, words: list[str], previous: str | list[str] | None
) -> str | list[str]:
    """Converts the words of a flag whose earlier uses have the value `previous`."""
    values = []
    for word in words:
        try:
            values.append(str(flag.read(word)))
        except ValueError as error:
            flaw = WrongValueError.of(error)
            detail = f"{form}: {shown(word)} {flaw}"
            raise FlagError(detail, form=form, rule=flaw.rule, fix=flaw.fix) from None
    if flag.takes not in ("any", "some") and not flag.repeated:
        return values[0] if values else flag.const
    values = [value for value in values if value]
    if flag.repeated and isinstance(previous, list):
        return [*previous, *values]
    return values
