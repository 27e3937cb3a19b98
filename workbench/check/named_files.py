"""Files and modules that a command line names: the YAML configuration, the chat template."""

from __future__ import annotations

import os
from collections.abc import Iterator

from config.declaration import ConfigError
from config.files import read_whole
from vllm_facts.combinations import TEMPLATE, is_missing_template
from vllm_facts.foreign_options import modules_in
from vllm_facts.words import CONFIG, SUFFIXES
from workbench.check.checkout import OUTSIDE, is_in_checkout, is_typed
from workbench.check.findings import Finding
from workbench.check.options import ReadOptions
from workbench.check.rules import finding
from workbench.check.sources import MAX_BYTES, CommandLine, Word
from workbench.check.text import Text


def with_configuration(line: CommandLine) -> None:
    """Replaces `--config FILE` by the options of the file, as `serve` does.

    A file in a container is not here, so it is not read.
    """
    words: list[Word] = []
    for word in line.words:
        if word.text.startswith(f"{CONFIG}="):
            message = f"vLLM ignores {word.text}"
            line.findings.append(
                finding("O111", word.place, message, fix=f"write {CONFIG} FILE as two words")
            )
        else:
            words.append(word)
    index = next((k for k, word in enumerate(words[:-1]) if word.text == CONFIG), None)
    if index is None:
        line.words = words
        return
    from_file = _words_of_file(line, words[index + 1])
    others = words[:index] + words[index + 2 :]
    first = 1 if others and not others[0].text.startswith("-") else 0
    line.words = [*others[:first], *from_file, *others[first:]]


def _words_of_file(line: CommandLine, name: Word) -> list[Word]:
    if name.unknown or line.is_in_container:
        text = name.unknown or name.text
        message = f"{text} is not here, so its options are not checked"
        line.findings.append(finding("F501", name.place, message))
        return []
    if os.path.exists(name.text) and not is_in_checkout(name.text, name.place):
        message = f"{name.text} {OUTSIDE}, so its options are not checked"
        line.findings.append(finding("F501", name.place, message))
        return []
    from workbench.check.files import read_yaml  # imports YAML

    try:
        if not name.text.endswith(SUFFIXES):
            raise ConfigError(f"{CONFIG} {name.text} must end in .yaml or .yml")
        content = read_whole(name.text, MAX_BYTES, accepts_pipes=is_typed(name.place)).decode(
            "utf-8"
        )
        configuration = read_yaml(Text(name.text, content))
    except UnicodeDecodeError as error:
        text = f"{name.text} is not a text in UTF-8: {error.reason}"
        line.findings.append(finding("D408", name.place, text, fix="check the path"))
        return []
    except (OSError, ConfigError) as error:
        text = str(error) if isinstance(error, ConfigError) else f"{name.text} does not exist"
        line.findings.append(finding("D408", name.place, text, fix="check the path"))
        return []
    line.findings += configuration.findings
    return configuration.words


def named_modules(options: ReadOptions, line: CommandLine) -> Iterator[Finding]:
    """Yields a note for each module that the command line names, and that the server imports."""
    for option, module in modules_in(options.values):
        message = f"--{option}: the server imports {module}, whose code is not checked"
        yield finding("F504", options.place_of(option, line.place), message)


def missing_files(options: ReadOptions, line: CommandLine) -> Iterator[Finding]:
    """Yields a finding for a chat template that is not there."""
    path = options.values.get(TEMPLATE)
    if not isinstance(path, str) or not is_missing_template(path):
        return
    place = options.place_of(TEMPLATE, line.place)
    if line.is_in_container:
        message = f"--{TEMPLATE}: {path} is in the container, so it is not checked"
        yield finding("F501", place, message)
        return
    message = f"--{TEMPLATE}: {path} does not exist here"
    yield finding("D409", place, message, fix="check the path, or ignore this if it is there later")
