"""Expands a vLLM command line to plain words: its YAML file, and flags with dots."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from config.declaration import UsageError
from config.flag_words import (
    Flag,
    FlagError,
    FlagFlaw,
    PlacedWord,
    WordsRead,
    read_placed_words,
    value_required,
)
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.facts import OPTIONS

CONFIG = "--config"
MODEL = "--model"
_SERVED_NAME = re.compile(r"--served[-_]model[-_]name(=.+)?", re.DOTALL)
SUFFIXES = (".yaml", ".yml")
SHORT_LEVEL = "-O"
LEVEL = "--optimization-level"
MAX_KEYS = 100
"""Most keys of a flag with dots; Python nests objects no deeper than a thousand times."""
LEVELS = (["0"], ["1"], ["2"], ["3"])


def model_first(words: Sequence[str]) -> list[str]:
    """Returns a command line whose model is the first word, and not the value of `--model`."""
    for index, word in enumerate(words):
        flag, equals, name = word.partition("=")
        if flag != MODEL:
            continue
        others = [*words[:index], *words[index + 1 :]]
        if not equals and index + 1 < len(words):
            name = others.pop(index)
        if not name or name.startswith("-"):
            break  # the flag has no value
        return [name, *others]
    return list(words)


def expand_file(argv: Sequence[str], *, has_model: bool = False) -> tuple[list[str], list[str]]:
    """Returns a command line with the options of its file instead of `--config FILE`, and warnings.

    As in vLLM, the options of the file come before all others, but after a model that is the first
    word. vLLM ignores a file in the same word as the flag. A file, or names of the model, require a
    model; `has_model`: there is one elsewhere.

    Raises:
        UsageError: There are several files, vLLM would not read the file, or there is no model.
        ConfigError: The file cannot be read, or is not a mapping.
    """
    warnings: list[str] = []
    words: list[str] = []
    for word in argv:
        if word.startswith(f"{CONFIG}="):
            warnings.append(f"vLLM ignores {word}: write {CONFIG} FILE as two words")
        else:
            words.append(word)
    first = 1 if words and not words[0].startswith("-") else 0
    if CONFIG not in words:
        if not (first or has_model or warnings) and any(map(_SERVED_NAME.fullmatch, words)):
            raise UsageError("flag --served-model-name requires a model, as the first word")
        return words, warnings
    if words.count(CONFIG) > 1:
        raise UsageError(f"flag {CONFIG}: only one file is allowed")
    index = words.index(CONFIG)
    if index + 1 == len(words):
        raise value_required(CONFIG)
    path = words[index + 1]
    if not path.endswith(SUFFIXES):
        raise UsageError(f"flag {CONFIG}: {path!r} must end in .yaml or .yml")
    from_file = list(file_words(path, warnings))
    others = words[:index] + words[index + 2 :]
    if not (first or has_model or any(word.partition("=")[0] == MODEL for word in from_file)):
        raise UsageError(f"flag {CONFIG} requires a model, as the first word or in the file")
    return [*others[:first], *from_file, *others[first:]], warnings


def file_words(path: str, warnings: list[str]) -> Iterator[str]:
    """Yields the words of the options in a YAML file; adds warnings about what vLLM ignores.

    Raises:
        ConfigError: The file cannot be read, or is not a mapping.
    """
    from config.yaml_file import parse_yaml  # few command lines have a file

    repeated_keys: list[str] = []
    document = parse_yaml(path, repeated_keys=repeated_keys, has_all_numbers=True)
    for key in repeated_keys:
        warnings.append(f"YAML file {path}: {key} is specified twice, the last value counts")
    if not document:
        raise UsageError(f"YAML file {path} is empty")
    if not isinstance(document, Mapping):
        raise UsageError(f"YAML file {path} must map options to values")
    for key, value in document.items():
        is_option = str(key).replace("_", "-") in OPTIONS
        if value is False and is_option:
            warnings.append(f"YAML file {path}: vLLM ignores {key}: false; use --no-{key}")
        elif value is not None or is_option:
            yield from option_words(str(key), value, is_option=is_option)


def option_words(key: str, value: object, *, is_option: bool) -> Iterator[str]:
    """Yields the words that vLLM makes of a key, such as Python's texts of objects in lists.

    A setting, which is not an option of vLLM, takes objects in lists as JSON.
    """
    flag = f"--{key}"
    if value is True:
        yield flag
    elif value is False:
        yield f"--no-{key}"
    elif isinstance(value, list) and (is_option or not any(map(_is_nested, value))):
        if value:
            yield flag
            yield from map(str, value)
    elif _is_nested(value):
        yield flag
        yield json.dumps(value)
    else:
        yield f"{flag}={value}"


def _is_nested(value: object) -> bool:
    return isinstance(value, list | dict)


def read_command_line(words: Iterable[PlacedWord], flags: Iterable[Flag]) -> WordsRead:
    """Reads the words of a command line of vLLM, and collects all flaws.

    `serve` raises the first flaw, and `check` reports every flaw.
    """
    flaws: list[FlagFlaw] = []
    plain_words = list(without_dots(words, flaws))
    result = read_placed_words(plain_words, flags, shortened=True)
    return result._replace(flaws=[*flaws, *result.flaws])


def with_full_forms(words: Sequence[str]) -> Iterator[PlacedWord]:
    """Yields words with `--optimization-level 3` for `-O3`, `-O=3` and `-O 3`.

    As in vLLM, only a digit from 0 to 3 may be a separate word, and a plain `-O` is unknown.
    """
    for index, word in enumerate(words):
        positions = (index,)
        if word == SHORT_LEVEL:
            is_flag = words[index + 1 : index + 2] in LEVELS
            yield PlacedWord(LEVEL if is_flag else word, positions)
        elif word.startswith(SHORT_LEVEL):
            yield PlacedWord(LEVEL, positions)
            yield PlacedWord(word.removeprefix(SHORT_LEVEL).removeprefix("="), positions)
        else:
            yield PlacedWord(word, positions)


def without_dots(words: Iterable[PlacedWord], flaws: list[FlagFlaw]) -> Iterator[PlacedWord]:
    """Converts `--a.b 1 --a.c+ x,y` to `--a {"b": 1, "c": ["x", "y"]}`, after all other words.

    A flag with a dot that has no value, or too many dots, is added to `flaws`.
    """
    objects: dict[str, dict[str, object]] = {}
    positions: dict[str, list[int]] = {}
    remaining = iter(words)
    for word in remaining:
        name, equals, text = word.text.partition("=")
        if not name.startswith("-") or "." not in name or name[1:2].isdigit() or name[1:2] == ".":
            yield word
            continue
        used = [*word.positions]
        value = text
        if not equals:
            value_word = next(remaining, None)
            if value_word is None:
                flaws.append(FlagFlaw(value_required(name), name, used))
                break
            value = value_word.text
            used.extend(value_word.positions)
        flag, *keys = name.removesuffix("+").split(".")
        if len(keys) > MAX_KEYS:
            detail = f"{flag} must have at most {MAX_KEYS} keys behind dots"
            flaws.append(FlagFlaw(FlagError(detail, form=flag, rule="valid value"), flag, used))
            continue
        nested: object = _dotted_value(name, value)
        for key in reversed(keys):
            nested = {key: nested}
        assert isinstance(nested, dict)
        flag = flag.replace("_", "-")
        _merge(objects.setdefault(flag, {}), nested)
        positions.setdefault(flag, []).extend(used)
    for flag, content in objects.items():
        yield PlacedWord(flag, positions[flag])
        yield PlacedWord(json.dumps(content), ())  # placed by its flag


def _dotted_value(name: str, text: str) -> object:
    """Returns the value of a flag with dots: a list for a name with +, JSON, or the text."""
    from vllm_facts.objects import plain_number  # few command lines have flags with dots

    if name.endswith("+"):
        return text.split(",")
    with suppress(UntrustedDataError):
        return decode_untrusted(text, decoder=python_json)
    number = plain_number(text)
    return text if number == text else int(number)


def _merge(target: dict[str, object], changes: dict[str, object]) -> None:
    for key, value in changes.items():
        present = target.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            _merge(present, value)
        elif isinstance(present, list) and isinstance(value, list):
            present += value
        else:
            target[key] = value
