"""The words of a vLLM command line, written out: its YAML file, its dotted names, its underscores.

What comes out is what argparse reads: options with dashes, and JSON where `--option.key value` stood.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from config.declaration import UsageError
from config.vllm.options import options
from config.yaml_file import parse_yaml

CONFIG = "--config"
LEVEL = "--optimization-level"
_NAME = re.compile(r"(?<=--)[^.=]*")
_OBSOLETE = re.compile(r"-O(?==?\w)")
"""`-O3`, written together with its value."""

JsonObject = dict[str, object]


def written_out(argv: Sequence[str]) -> list[str]:
    """`argv` with the words of its YAML file, and with nothing that only vLLM's own parser knows."""
    return list(_without_dots([part for word in _with_file(list(argv)) for part in _dashed(word)]))


def _with_file(argv: list[str]) -> list[str]:
    """What the file says stands before what the line says, and behind the model."""
    at = next((k for k, word in enumerate(argv) if word.partition("=")[0] == CONFIG), None)
    if at is None:
        return argv
    _, equals, path = argv[at].partition("=")
    if not equals:
        path = next(iter(argv[at + 1 : at + 2]), "")
    if not path:
        raise UsageError(f"flag {CONFIG} needs a value")
    rest = argv[:at] + argv[at + (1 if equals else 2) :]
    if any(word.partition("=")[0] == CONFIG for word in rest):
        raise UsageError(f"flag {CONFIG}: only one file can be given")
    model = rest[:1] if rest and not rest[0].startswith("-") else []
    return [*model, *_words_of(path), *rest[len(model) :]]


def _words_of(path: str) -> Iterator[str]:
    document = parse_yaml(path)
    if not isinstance(document, Mapping):
        raise UsageError(f"YAML file {path}: must be a mapping of options to values")
    for key, value in document.items():
        flag = f"--{key}"
        if isinstance(value, bool):
            option = options().get(str(key).replace("_", "-"))
            if value or option is None or option.off:  # else it is off unless it is given
                yield flag if value else f"--no-{key}"
        elif isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
            yield from (flag, *map(str, value)) if value else ()
        elif isinstance(value, list | dict):
            yield from (flag, json.dumps(value))
        elif value is not None:
            yield f"{flag}={value}"


def _dashed(word: str) -> list[str]:
    if word.startswith("--"):
        return [_NAME.sub(lambda name: name[0].replace("_", "-"), word, count=1)]
    if found := _OBSOLETE.match(word):
        return [LEVEL, word[found.end() :].removeprefix("=")]
    return [LEVEL if word == "-O" else word]


def _without_dots(words: Sequence[str]) -> Iterator[str]:
    """`--a.b 1 --a.c+ x,y` becomes `--a {"b": 1, "c": ["x", "y"]}`, behind the others."""
    objects: dict[str, JsonObject] = {}
    rest = iter(words)
    for word in rest:
        name, equals, text = word.partition("=")
        if not name.startswith("-") or "." not in name or name[1:2].isdigit() or name[1:2] == ".":
            yield word
            continue
        value = text if equals else next(rest, None)
        if value is None:
            raise UsageError(f"flag {name} needs a value")
        flag, *keys = name.removesuffix("+").split(".")
        found: object = value.split(",") if name.endswith("+") else _value(value)
        for key in reversed(keys):
            found = {key: found}
        assert isinstance(found, dict)
        _merge(objects.setdefault(flag, {}), found)
    for flag, made in objects.items():
        yield from (flag, json.dumps(made))


def _value(text: str) -> object:
    """JSON where it is JSON, else the text itself."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _merge(into: JsonObject, more: JsonObject) -> None:
    for key, value in more.items():
        known = into.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            known += value
        else:
            into[key] = value
