"""Reads the options of a command line with the rules of `serve`, and reports all flaws.

`serve` stops at the first flaw. Here the option with the flaw is left out, and the rest is read
again. Start reading at `read_options`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from config.declaration import FlagRule, UsageError, closest
from config.flag_words import Flag, full_forms_of, read_words
from config.sources import FlagValues
from vllm_facts.history import History
from vllm_facts.option import Option
from vllm_facts.options import PREFIX, names_of, option_flags, options_of
from vllm_facts.past_options import past_options
from vllm_facts.removal import successor_of
from vllm_facts.version import DESCRIBED
from vllm_facts.words import SHORT_LEVEL, without_dots
from workbench.check.findings import Finding, Place
from workbench.check.rules import finding
from workbench.check.sources import CommandLine, Word, placeholder_in

MAX_FLAWS = 50
"""Most flaws of a command line that are reported."""
_FORM_START = re.compile(r"--?[A-Za-z]")
_SHORT_LEVEL = re.compile(r"-O\w+")
CODES: Mapping[FlagRule | None, str] = {
    "value required": "O106",
    "no value": "O106",
    "known field": "O105",
}
"""Rule of the parser -> code; a wrong value has O104."""
LEVEL = "optimization-level"
HELP_FORMS = ("--help", "-h", "--version", "-v")


@dataclass(slots=True)
class ReadOptions:
    """The options of a command line, as far as they are valid."""

    version: str
    """Version whose rules were taken, such as 0.32."""
    table: Mapping[str, Option]
    words: list[Word]
    """The words that were read, without those with a flaw."""
    values: FlagValues = field(default_factory=dict)
    """Options by name; the model is `model`."""
    findings: list[Finding] = field(default_factory=list)
    has_unknown_model: bool = False
    """The model is a variable without a value."""
    unknown_options: set[str] = field(default_factory=set)
    """Options whose values are not known; "*" if there may be further options."""

    def has(self, name: str) -> bool:
        """Returns whether the command line has an option, with a known value or not."""
        nowhere = Place("")
        is_known = name in self.values or name in self.unknown_options
        return is_known or self.place_of(name, nowhere) is not nowhere

    def place_of(self, name: str, default: Place) -> Place:
        """Returns the place of an option."""
        forms = {f"--{name}", f"--no-{name}"}
        if name in self.table:
            forms.update(names_of(name, self.table))
        if name == LEVEL:
            forms.add(SHORT_LEVEL)
        for word in self.words:
            if form_of(word.text).partition(".")[0] in forms:
                return word.place
        return default


def supported_versions() -> tuple[str, ...]:
    """Returns the versions of vLLM that are known in full."""
    return DESCRIBED


def form_of(text: str) -> str:
    """Returns the flag of a word, with dashes."""
    form = text.partition("=")[0]
    return form.replace("_", "-") if form.startswith("--") else form


class OptionReader:
    """Reads command lines as one version of vLLM does."""

    def __init__(self, version: str, versions: Sequence[str], history: History) -> None:
        """`versions` are known in full, with the newest one last."""
        self.version = version
        self._history = history
        self._is_known = is_known = version in versions
        if is_known:
            table = options_of(versions[: versions.index(version) + 1])
        else:
            table = past_options(history, version)
        self.table = table
        self._flags = [*_plain_flags()]
        for name, option in table.items():
            self._flags += option_flags(name, option, version=version if is_known else "")
        self._forms = [form for flag in self._flags for form in flag.forms]

    def read(self, line: CommandLine) -> ReadOptions:
        """Returns the options of a command line, with a finding for each flaw."""
        result = ReadOptions(self.version, self.table, [])
        result.words = self._without_unknown(line, result)
        for _ in range(MAX_FLAWS):
            unknown_forms: list[str] = []
            try:
                texts = [word.text for word in result.words]
                values, others = read_words(
                    without_dots(texts), self._flags, shortened=True, unknown_forms=unknown_forms
                )
            except UsageError as error:
                if not self._leave_out(result, error, line.place):
                    return result
                continue
            if unknown_forms:
                self._leave_out_unknown(result, unknown_forms[0])
                continue
            self._set_values(result, values, others)
            return result
        return result

    def _without_unknown(self, line: CommandLine, result: ReadOptions) -> list[Word]:
        """Returns the words whose values are known; `-O3` becomes `-O=3`."""
        words: list[Word] = []
        takes_value = False
        for word in line.words:
            is_option = _FORM_START.match(word.text) is not None
            name = word.unknown or placeholder_in(word.text)
            if not name:
                if _SHORT_LEVEL.fullmatch(word.text):
                    word = replace(word, text=f"{SHORT_LEVEL}={word.text[len(SHORT_LEVEL) :]}")
                words.append(word)
                takes_value = is_option and "=" not in word.text and self._takes_value(word.text)
                continue
            if is_option:
                result.unknown_options.add(self._name_of(form_of(word.text)))
            elif takes_value and words:
                form = form_of(words[-1].text)
                result.unknown_options.add(self._name_of(form))
                if full_forms_of(form.partition(".")[0], self._forms):
                    words.pop()
            elif not words and not word.text.startswith("-") and not result.has_unknown_model:
                result.has_unknown_model = True
            else:
                result.unknown_options.add("*")
            takes_value = False
            message = f"the value of {name} is not known, so it is not checked"
            result.findings.append(finding("F501", word.place, message))
        return words

    def _name_of(self, form: str) -> str:
        """Returns the name of an option that is written short, or as the beginning of its name."""
        full_forms = full_forms_of(form, self._forms)
        if form not in full_forms and len(full_forms) == 1:
            form = full_forms[0]
        for flag in self._flags:
            if form in flag.forms:
                return flag.name.removeprefix(PREFIX).lstrip("-")
        return form.lstrip("-")

    def _takes_value(self, text: str) -> bool:
        form = form_of(text).partition(".")
        if form[1]:
            return True
        for flag in self._flags:
            if form[0] in flag.forms:
                return flag.takes != "nothing"
        return True

    def _leave_out(self, result: ReadOptions, error: UsageError, default: Place) -> bool:
        """Reports an error of the parser; returns False if its option is not found."""
        form = form_of(error.form)
        removed = self._removed_beginning(result, form)
        if removed:
            self._leave_out_unknown(result, removed)
            return True
        place = remove_option(result, form, self._forms)
        if error.rule == "valid JSON" and not self._is_known:
            return place is not None  # earlier versions take some of these options in other forms
        code = CODES.get(error.rule, "O104")
        text = str(error).removeprefix("flag ")
        advice = f"use {error.fix}" if error.fix else ""
        result.findings.append(finding(code, place or default, text, fix=advice))
        return place is not None

    def _removed_beginning(self, result: ReadOptions, form: str) -> str:
        """Returns a removed option that is read as the beginning of another; empty for none."""
        for word in result.words:
            written = form_of(word.text)
            lifetime = self._history.options.get(written)
            if lifetime is not None and form.startswith(written) and written not in self._forms:
                return written
        return ""

    def _leave_out_unknown(self, result: ReadOptions, form: str) -> None:
        place = remove_option(result, form, ())
        assert place is not None
        result.findings.append(self._unknown_option(form, place))

    def _unknown_option(self, form: str, place: Place) -> Finding:
        """Returns why this version does not have an option."""
        positive = form.replace("--no-", "--", 1)
        for name in (form, positive):
            lifetime = self._history.options.get(name)
            if lifetime is None or lifetime.is_in(self.version):
                continue
            if not lifetime.is_gone_in(self.version):
                first = lifetime.first_after(self.version)
                message = f"{form} is an option of vLLM {first} and later"
                return finding("O107", place, message, fix=f"use vLLM {first}, or remove it")
            gone = lifetime.gone_in
            replacement = successor_of(form, lifetime)
            if not replacement:
                message = f"vLLM {gone} removed {form}"
                return finding("O102", place, message, fix=f"remove {form}")
            message = f"vLLM {gone} replaced {form} by {replacement}"
            if replacement == form.replace("--disable-", "--enable-", 1):
                message += ", which is off by default"
                return finding("O103", place, message, fix=f"remove {form}")
            return finding("O103", place, message, fix=f"use {replacement}")
        full_forms = full_forms_of(form, self._forms)
        if len(full_forms) > 1:
            message = f"{form} could mean {', '.join(full_forms[:5])}"
            return finding("O101", place, message, fix="write the whole name")
        if " " in form:
            fix = "write an entry for each word"
            return finding("O101", place, f"{form!r} is one word, and no option", fix=fix)
        similar_form = closest(form, self._forms)
        fix = f"use {similar_form}" if similar_form else f"remove {form}"
        return finding("O101", place, f"vLLM {self.version} has no option {form}", fix=fix)

    def _set_values(self, result: ReadOptions, values: FlagValues, others: Sequence[str]) -> None:
        for name, value in values.items():
            result.values[name.removeprefix(PREFIX)] = value
        models = list(others)
        if result.has_unknown_model:
            models.insert(0, "")
        if models and models[0]:
            result.values["model"] = models[0]
        if models and " -" in models[0]:
            place = next((w.place for w in result.words if w.text == models[0]), None)
            if place is not None:
                message = f"the model {models[0]!r} is one word with options"
                fix = "write an entry for each word"
                result.findings.append(finding("O114", place, message, fix=fix))
        remaining = list(result.words)
        for number, extra in enumerate(models):
            index = next((k for k, word in enumerate(remaining) if word.text == extra), None)
            message = f"{extra!r} belongs to no option"
            place = remaining.pop(index).place if index is not None else None
            if place is not None and number:
                fix = f"remove {extra}, or write the option in front of it"
                result.findings.append(finding("O112", place, message, fix=fix))


def _plain_flags() -> Iterator[Flag]:
    yield Flag(name=PREFIX + LEVEL, forms=(SHORT_LEVEL,))
    for form in HELP_FORMS:
        yield Flag(name=form, forms=(form,), takes="nothing")


def remove_option(result: ReadOptions, form: str, forms: Iterable[str]) -> Place | None:
    """Removes an option with its values, and returns its place; None if it is not there.

    The option may be written with underscores, dots, or as a beginning of its name.
    """
    all_forms = list(forms)
    place: Place | None = None
    kept: list[Word] = []
    skips = False
    for word in result.words:
        if skips and not word.text.startswith("-"):
            continue
        skips = False
        written = form_of(word.text)
        head = written.partition(".")[0]
        is_same = form in (written, head)
        if not is_same and written.startswith("--") and form.startswith(written):
            is_same = full_forms_of(written, all_forms) == [form]
        if is_same and word.text.startswith("-"):
            place = place or word.place
            skips = "=" not in word.text
        else:
            kept.append(word)
    result.words = kept
    return place
