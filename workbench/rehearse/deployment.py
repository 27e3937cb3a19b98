"""The command lines of the stand-ins: the deployment's own, as each version takes it.

Start at `Deployment`. A deployment may be that of a stranger, so its options pass only if
`vllm_facts.foreign_options` lets them. An option that the newer version renamed has its new name
there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from config.declaration import UsageError
from config.files import read_whole
from config.sources import FlagValues
from vllm_facts.combinations import is_missing_file
from vllm_facts.foreign_options import (
    PARSERS,
    foreign_options,
    may_alter_answers,
    passing_value,
)
from vllm_facts.models import find_model
from vllm_facts.option import Option
from vllm_facts.removal import REPLACEMENTS, TASK
from workbench.check.checker import Checker, Hardware
from workbench.check.checkout import OUTSIDE, is_in_checkout
from workbench.check.findings import Finding
from workbench.check.options import LEVEL, ReadOptions, form_of
from workbench.check.sources import CommandLine, Word
from workbench.fleet.isolation import Isolation

DEFAULT_MODEL = "Qwen/Qwen3-8B"
DEFAULT_WORDS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--served-model-name", DEFAULT_MODEL, "*"),
)
"""A model that calls tools, under every name: for a client without a deployment."""
THINKING = ("--reasoning-parser", "qwen3")
"""The option that it gets for a client that knows about thoughts."""
POOLING = ("--runner", "pooling")
POOLING_TASKS = ("classify", "embed", "embedding", "reward", "score")
"""Values of `--task` for which newer versions have a runner that is not the default."""
TRANSFER = "kv-transfer-config"
"""Option with hosts, without which only requests with `kv_transfer_params` have other answers."""
SERVED_NAMES = "served-model-name"
TOKENIZER = "tokenizer"
TOOL_PARSER = "tool-call-parser"
TOOL_CHOICE = "enable-auto-tool-choice"
"""Option that requires the tool parser."""
CONFIG = "config"
TEMPLATE = "chat-template"
TEMPLATE_FILE = "chat_template.jinja"
MAX_TEMPLATE_BYTES = 1 << 20
ANSWER_VARIABLES = (
    *("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_BATCH_INVARIANT", "VLLM_ENABLE_COHERE_API"),
    *("VLLM_ENABLE_RESPONSES_API_STORE", "VLLM_SERVER_DEV_MODE"),
)
"""Variables that change answers. No variable of a deployment reaches the stand-ins."""
SOURCE_MARK = "{"
"""A chat template with this character is the text of a template, as servers read it."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,200}(/[A-Za-z0-9][\w.-]{0,200})?", re.ASCII)
"""The name of a model, with an organization or without, which is no path."""


class Deployment:
    """The server that the files start; a model that calls tools without one."""

    def __init__(self, line: CommandLine | None, folder: str, thoughts: str = "") -> None:
        """`folder` gets a copy of the chat template, which the stand-ins read.

        `thoughts` names the place where the client asks for thoughts; a model without a deployment
        then has them.
        """
        self._line = line
        self._folder = folder
        self._thoughts = thoughts
        self.notes: list[str] = []
        """Sentences about parts of the deployment that the stand-ins lack."""
        self.lost: list[str] = []
        """Options that the stand-ins lack, and without which they may answer otherwise."""

    @property
    def isolation(self) -> Isolation | None:
        """Folder and environment of the stand-ins; None without files, for a model of ours."""
        if self._line is None:
            return None
        return Isolation(self._folder, checkout=os.getcwd())

    def words(self, version: str) -> list[str]:
        """Returns the words after `serve` for a stand-in of a version."""
        if self._line is None:
            return self._default_words()
        options = self._options(self._line, version)
        self._note_configuration(self._line.findings)
        variables = [name for name in ANSWER_VARIABLES if name in self._line.environment]
        if variables:
            self._note(f"the stand-ins do not get the variables {', '.join(variables)}")
        values = dict(options.values)
        model = str(values.pop("model", ""))
        passing: FlagValues = {}
        for name, value in values.items():
            passed = self._passing(name, value, options, model=model)
            if passed is not None:
                passing[name] = passed
        for name in sorted(options.unknown_options):
            if name in foreign_options().alters_answers - {TEMPLATE}:
                self._lose(name)
        if TOOL_PARSER not in passing:
            passing.pop(TOOL_CHOICE, None)
        if not _is_known(model):
            names = passing_value(SERVED_NAMES, [model] if model else [])
            passing.setdefault(SERVED_NAMES, names or [DEFAULT_MODEL, "*"])
            self._note(
                f"the model {model or 'of a variable'} is not known: {DEFAULT_MODEL} has its place"
            )
            model = DEFAULT_MODEL
        words = [model]
        for name, value in passing.items():
            words += _words_of(name, value, options.table.get(name))
        return words

    def _default_words(self) -> list[str]:
        assumed = f"no file starts a server: {DEFAULT_MODEL} is assumed, under every name"
        if self._thoughts:
            self._note(f"{assumed}, with thoughts, because of {self._thoughts}")
            return [DEFAULT_MODEL, *DEFAULT_WORDS, *THINKING]
        self._note(f"{assumed}, without thoughts, as the client names no field of them")
        return [DEFAULT_MODEL, *DEFAULT_WORDS]

    def _note_configuration(self, findings: Iterable[Finding]) -> None:
        """Notes a file of options that was not read, as it is not here or not in the checkout."""
        for finding in findings:
            if finding.code != "F501":
                continue
            if OUTSIDE in finding.message:
                self._lose(CONFIG)
            else:
                self._note(finding.message)

    def _options(self, line: CommandLine, version: str) -> ReadOptions:
        """Returns the options that a version reads, also those that it has renamed."""
        checker = Checker(version, "", Hardware())
        options = checker.options(line)
        renamed = list(_renamed(options.findings, line.words))
        if not renamed:
            return options
        return checker.options(replace(line, words=[*line.words, *renamed]))

    def _passing(
        self, name: str, value: str | list[str], options: ReadOptions, *, model: str
    ) -> str | list[str] | None:
        """Returns the value that the stand-ins get; None for an option that they lack."""
        if name == TEMPLATE:
            return self._template(str(value), options)
        if name == TOKENIZER and value == model:
            return None  # as without the option
        if name.startswith("-"):  # the help
            return None
        passed = passing_value(name, value)
        if name in PARSERS and not _is_own_name(value, options.table.get(name)):
            passed = None
        if name == TRANSFER:
            self._note(f"--{TRANSFER} is left out: the stand-ins ignore `kv_transfer_params`")
        elif passed is None and may_alter_answers(name):
            self._lose(name)
        return passed

    def _template(self, value: str, options: ReadOptions) -> str | None:
        """Returns the path of a copy of a chat template; None for one that is not read."""
        assert self._line is not None
        if SOURCE_MARK in value:
            return self._copy(value.encode("utf-8", "replace"))
        if self._line.is_in_container or is_missing_file(value):
            # The image or a volume has the file, which is the same for both versions.
            self._note(f"--{TEMPLATE} names a file that is not here, and is left out")
            return None
        place = options.place_of(TEMPLATE, self._line.place)
        if value and is_in_checkout(value, place):
            with suppress(OSError):
                return self._copy(read_whole(value, MAX_TEMPLATE_BYTES, accepts_pipes=False))
        self._lose(TEMPLATE)
        return None

    def _copy(self, template: bytes) -> str | None:
        """Writes a template into the folder, and returns its path; None for one that is too large.

        A file of the checkout could become another one before the server reads it.
        """
        if len(template) > MAX_TEMPLATE_BYTES:
            self._lose(TEMPLATE)
            return None
        path = os.path.join(self._folder, TEMPLATE_FILE)
        with open(path, "wb") as file:
            file.write(template)
        return path

    def _lose(self, name: str) -> None:
        if name not in self.lost:
            self.lost.append(name)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def lost_options(names: Sequence[str]) -> str:
    """Returns which options the stand-ins lack, without a dot at the end."""
    flags = ", ".join(f"--{name}" for name in names)
    return f"the stand-ins lack {flags} of the deployment, without which they may answer otherwise"


def _is_known(model: str) -> bool:
    """Returns whether a model is a known name, and not the path of a folder."""
    try:
        return NAME.fullmatch(model) is not None and find_model(model) is not None
    except UsageError:
        return False


def _is_own_name(value: str | list[str], option: Option | None) -> bool:
    """Returns whether vLLM itself has a parser of this name."""
    return option is None or not option.names or option.name_error(str(value)) is None


def _words_of(name: str, value: str | list[str], option: Option | None) -> list[str]:
    """Returns the words of an option, in full: no other flag can begin like them."""
    flag = f"--{name}"
    if isinstance(value, list):
        return [flag, *value] if value else []
    if option is not None and option.kind == "switch":
        return [flag if value == "true" else f"--no-{name}"]
    if name == LEVEL:  # `serve` reads it as another option in versions without it
        return [flag, value]
    return [f"{flag}={value}"] if value else []


def _renamed(findings: Iterable[Finding], words: Sequence[Word]) -> Iterator[Word]:
    """Yields the new names of options that a version has renamed, with their values."""
    codes = {(finding.line, finding.column): finding for finding in findings}
    for index, word in enumerate(words):
        finding = codes.get((word.place.line, word.place.column))
        if finding is None or finding.code != "O103":
            continue
        form = form_of(word.text)
        replacement = REPLACEMENTS.get(form) or finding.fix.removeprefix("use ")
        value = list(_value_of(word.text, [word.text for word in words[index + 1 :]]))
        texts: list[str] = []
        if form == TASK:
            texts = list(POOLING) if value and value[0] in POOLING_TASKS else []
        elif replacement.startswith("--") and " " not in replacement:
            texts = [replacement, *value]
        for text in texts:
            yield Word(text, word.place)


def _value_of(text: str, following: Sequence[str]) -> Iterator[str]:
    """Yields the value of an option, if it has one."""
    if "=" in text:
        yield text.partition("=")[2]
    elif following and not following[0].startswith("-"):
        yield following[0]
