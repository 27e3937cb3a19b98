"""Reads the words of a command line. argparse is not used: 500 flags would slow each start."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from config.declaration import FlagRule, UsageError, shown, suggestion
from config.sources import IGNORED, REMOVED, FlagValues

SHORT_LENGTH = 2
"""Characters of a flag with one letter."""
_SHORT_FLAG = re.compile(r"-[A-Za-z][\w-]*(?:=|$)", re.ASCII)
"""A flag with one dash, unlike a negative number and a text with spaces."""


class WrongValueError(ValueError):
    """Raised for the value of a flag; the message completes the sentence "the value ..."."""

    def __init__(
        self, flaw: str, *, rule: FlagRule = "valid value", fix: str = "", advice: str = ""
    ) -> None:
        super().__init__(flaw + advice)
        self.flaw = flaw
        """The message without the advice at its end."""
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
    words: Iterable[str],
    flags: Iterable[Flag],
    *,
    shortened: bool = False,
    skips_unknown: bool = False,
    unknown_forms: list[str] | None = None,
) -> tuple[FlagValues, list[str]]:
    """Returns values by name, and words that belong to no flag.

    `shortened` accepts beginnings of flags, and `--` before words that are no flags. Unknown flags
    are added to `unknown_forms`, if that is a list. An empty word that is not the value of a flag
    is ignored: manifests whose arguments come from templates pass such words.

    Raises:
        UsageError: A flag is wrong, or unknown without `skips_unknown` and `unknown_forms`.
    """
    by_form = {form: flag for flag in flags for form in flag.forms}
    values: FlagValues = {}
    others: list[str] = []
    waiting = deque(words)
    while waiting:
        word = waiting.popleft()
        if not word:
            continue
        if word == "--" and shortened:
            others += waiting
            break
        form, text = _split_flag(word, by_form)
        if form not in by_form:
            full_forms = full_forms_of(form, by_form) if shortened else []
            is_short = len(full_forms) == 1 and not skips_unknown
            if not is_short and (skips_unknown or not form.startswith("--")):
                others.append(word)
                continue
            if len(full_forms) != 1:
                if unknown_forms is None:
                    raise unknown_flag(form, by_form, full_forms)
                unknown_forms.append(form)
                continue
            form = full_forms[0]
        flag = by_form[form]
        value_words = _value_words(form, flag, text, waiting, by_form=by_form)
        values[flag.name] = _value(form, flag, value_words, values.get(flag.name))
    return values, others


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


def value_required(form: str) -> UsageError:
    """Returns the error for a flag without a value."""
    return UsageError(f"flag {form} requires a value", form=form, rule="value required")


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


def _value_words(
    form: str, flag: Flag, text: str | None, waiting: deque[str], *, by_form: Mapping[str, Flag]
) -> list[str]:
    """Returns the words of a flag's value: `text`, or words removed from `waiting`.

    Raises:
        UsageError: The flag takes no value, or needs one.
    """
    if text is None:
        words = _next_values(flag, waiting, by_form)
    elif flag.takes == "nothing":
        raise UsageError(f"flag {form} does not accept a value", form=form, rule="no value")
    else:
        words = [text]
    if not words and flag.takes in ("one", "some"):
        raise value_required(form)
    return words


def _next_values(flag: Flag, waiting: deque[str], by_form: Mapping[str, Flag]) -> list[str]:
    """Removes the values of a flag from the `waiting` words, and returns them.

    An empty word is a value of a flag that needs one (`--api-key ""`), but never of a switch.
    """
    if flag.takes == "nothing":
        return []
    is_list = flag.takes in ("any", "some")
    values: list[str] = []
    while waiting and (is_list or not values):
        word = waiting[0]
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
            message = f"flag {form}: {shown(word)} {flaw}"
            raise UsageError(message, form=form, rule=flaw.rule, fix=flaw.fix) from None
    if flag.takes not in ("any", "some") and not flag.repeated:
        return values[0] if values else flag.const
    values = [value for value in values if value]
    if flag.repeated and isinstance(previous, list):
        return [*previous, *values]
    return values
