"""Expands a vLLM command line to plain words: its YAML file, and flags with dots."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from config.declaration import UsageError
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from config.vllm.facts import OPTIONS
from config.yaml_file import parse_yaml

JsonObject = dict[str, object]


def file_words(path: str) -> Iterator[str]:
    """Yields the words of the options in a YAML file.

    Raises:
        ConfigError: The file cannot be read, or is not a mapping.
    """
    document = parse_yaml(path, has_all_numbers=True)
    if not isinstance(document, Mapping):
        raise UsageError(f"YAML file {path} must map options to values")
    for key, value in document.items():
        yield from _option_words(str(key), value)


def _option_words(key: str, value: object) -> Iterator[str]:
    flag = f"--{key}"
    if isinstance(value, bool):
        option = OPTIONS.get(key.replace("_", "-"))
        if value:
            yield flag
        elif option is None or option.off:  # a switch without an off form is off by default
            yield f"--no-{key}"
    elif isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        if value:
            yield flag
            yield from map(str, value)
    elif isinstance(value, list | dict):
        yield flag
        yield json.dumps(value)
    elif value is not None:
        yield f"{flag}={value}"


def without_dots(words: Iterable[str]) -> Iterator[str]:
    """Converts `--a.b 1 --a.c+ x,y` to `--a {"b": 1, "c": ["x", "y"]}`, after all other words.

    Raises:
        UsageError: A flag with a dot has no value.
    """
    objects: dict[str, JsonObject] = {}
    remaining = iter(words)
    for word in remaining:
        name, equals, text = word.partition("=")
        if not name.startswith("-") or "." not in name or name[1:2].isdigit() or name[1:2] == ".":
            yield word
            continue
        value = text if equals else next(remaining, None)
        if value is None:
            raise UsageError(f"flag {name} requires a value")
        flag, *keys = name.removesuffix("+").split(".")
        nested: object = _dotted_value(name, value)
        for key in reversed(keys):
            nested = {key: nested}
        assert isinstance(nested, dict)
        _merge(objects.setdefault(flag.replace("_", "-"), {}), nested)
    for flag, content in objects.items():
        yield flag
        yield json.dumps(content)


def _dotted_value(name: str, text: str) -> object:
    """Returns the value of a flag with dots: a list for a name with +, JSON, or the text."""
    if name.endswith("+"):
        return text.split(",")
    with suppress(UntrustedDataError):
        return decode_untrusted(text, decoder=python_json)
    return text


def _merge(target: JsonObject, changes: JsonObject) -> None:
    for key, value in changes.items():
        present = target.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            _merge(present, value)
        elif isinstance(present, list) and isinstance(value, list):
            present += value
        else:
            target[key] = value
