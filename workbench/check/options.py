"""Reads the options of a command line with the reader of `serve`, and reports all its flaws.

Start reading at `OptionReader`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from msgspec import structs

from config.command_line import without_keyword
from config.declaration import closest
from config.flag_words import (
    Flag,
    FlagFlaw,
    FlagRule,
    WordsRead,
    full_forms_of,
    placed_words,
)
from config.sources import FlagValues
from vllm_facts.history import History
from vllm_facts.option import Option
from vllm_facts.options import PREFIX, option_flags, options_of
from vllm_facts.past_options import past_options
from vllm_facts.removal import TASK, successor_of, task_advice
from vllm_facts.version import DESCRIBED
from vllm_facts.words import SHORT_LEVEL, read_command_line
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
TEMPLATE_FLAG = "--chat-template"
JINJA_STATEMENT = "{%"
"""Mark of a chat template; templates of charts and of CIs have other marks."""
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
    option_words: dict[str, list[Word]] = field(default_factory=dict)
    """The words of each option in `values`, by its name; the option itself is the first one."""
    findings: list[Finding] = field(default_factory=list)
    has_unknown_model: bool = False
    """The model is a variable without a value."""
    unknown_options: set[str] = field(default_factory=set)
    """Options whose values are not known; "*" if there may be further options."""

    def has(self, name: str) -> bool:
        """Returns whether the command line has an option, with a known value or not."""
        return name in self.values or name in self.unknown_options or name in self.option_words

    def place_of(self, name: str, default: Place) -> Place:
        """Returns the place of an option."""
        words = self.option_words.get(name)
        return words[0].place if words else default

    def remove(self, name: str) -> None:
        """Removes the words of an option."""
        removed = set(map(id, self.option_words.pop(name, ())))
        self.words = [word for word in self.words if id(word) not in removed]


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
        words = self._without_unknown(line, result)
        read = read_command_line(placed_words(word.text for word in words), self._flags)
        wrong = {number for flaw in read.flaws for number in flaw.positions}
        for name, numbers in read.positions.items():
            option = name.removeprefix(PREFIX)
            result.option_words[option] = [words[number] for number in numbers]
        result.words = [word for number, word in enumerate(words) if number not in wrong]
        result.findings += islice(self._reports(read.flaws, words), MAX_FLAWS)
        self._set_values(result, read, words)
        return result

    def _without_unknown(self, line: CommandLine, result: ReadOptions) -> list[Word]:
        """Returns the words whose values are known.

        `-O3` becomes `-O=3`, and `--help=ModelConfig` becomes `--help`, as in vLLM's parser.
        """
        words: list[Word] = []
        takes_value = False
        for word in line.words:
            [plain_text] = without_keyword([word.text])[1]
            if plain_text != word.text:
                word = replace(word, text=plain_text)
            is_option = _FORM_START.match(word.text) is not None
            name = word.unknown or placeholder_in(word.text)
            if not name or (takes_value and _is_template(words, word)):
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

    def _reports(self, flaws: Sequence[FlagFlaw], words: Sequence[Word]) -> Iterator[Finding]:
        """Yields the findings of wrong values, and then those of unknown options."""
        unknown = []
        task = _text_after(TASK, words)
        for flaw in flaws:
            word = words[flaw.positions[0]]
            removed = self._removed_beginning(word, flaw.error.form)
            if flaw.error.rule == "known flag":
                unknown.append((flaw.error.form, word))
            elif removed:
                unknown.append((removed, word))
            elif flaw.error.rule != "valid JSON" or self._is_known:
                # Earlier versions take some options in other forms than JSON.
                code = CODES.get(flaw.error.rule, "O104")
                advice = f"use {flaw.error.fix}" if flaw.error.fix else ""
                yield finding(code, word.place, flaw.error.detail, fix=advice)
        for form, word in unknown:
            problem = self._unknown_option(form, word.place)
            advice = ""
            if form == TASK and problem.code == "O103":
                advice = task_advice(task, self.version)
            yield structs.replace(problem, fix=advice or problem.fix)

    def _removed_beginning(self, word: Word, form: str) -> str:
        """Returns a removed option that is read as the beginning of another; empty for none."""
        written = form_of(word.text)
        lifetime = self._history.options.get(written)
        if lifetime is not None and form.startswith(written) and written not in self._forms:
            return written
        return ""

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

    def _set_values(self, result: ReadOptions, read: WordsRead, words: Sequence[Word]) -> None:
        for name, value in read.values.items():
            result.values[name.removeprefix(PREFIX)] = value
        others = list(read.others)
        if not result.has_unknown_model and others:
            model = others.pop(0)
            result.values["model"] = model.text
            if " -" in model.text and model.positions:
                message = f"the model {model.text!r} is one word with options"
                fix = "write an entry for each word"
                place = words[model.positions[0]].place
                result.findings.append(finding("O114", place, message, fix=fix))
        for extra in others:
            if not extra.positions:
                continue  # the object of flags with dots
            place = words[extra.positions[0]].place
            message = f"{extra.text!r} belongs to no option"
            fix = f"remove {extra.text}, or write the option in front of it"
            result.findings.append(finding("O112", place, message, fix=fix))


def _text_after(option: str, words: Sequence[Word]) -> str:
    """Returns the value of an option by its words; empty without one."""
    text = ""
    for index, word in enumerate(words):
        form, _, text_behind = word.text.partition("=")
        if form == option:
            following = words[index + 1 : index + 2]
            text = text_behind or "".join(word.text for word in following)
    return text


def _is_template(words: Sequence[Word], value: Word) -> bool:
    """Returns whether a value is a chat template, whose braces are not those of a placeholder."""
    if not words or not words[-1].text.replace("_", "-").startswith(TEMPLATE_FLAG):
        return False
    return JINJA_STATEMENT in value.text and not any(mark in value.unknown for mark in "$`")


def _plain_flags() -> Iterator[Flag]:
    yield Flag(name=PREFIX + LEVEL, forms=(SHORT_LEVEL,))
    for form in HELP_FORMS:
        yield Flag(name=form, forms=(form,), takes="nothing")
