"""Parser of vLLM's `serve` command line: vLLM's options, and Understudy's settings among them.

The YAML file, dotted names and underscores are first expanded to plain words for argparse.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from config.declaration import UsageError
from config.flags import NOTHING, SettingsParser, add_settings, flags_of, given_to, kind_of, plain_parser
from config.installation import COMMAND
from config.settings import table_of
from config.sources import Flags
from config.vllm.options import Option, groups, options
from config.yaml_file import parse_yaml

MODEL = "model_tag"
OURS = "vllm "
"""Prefix of vLLM's options among the parser's results; settings have no prefix."""
USAGE = f"{COMMAND} serve [MODEL] [--option value ...]"
ABOUT = f"""\
Takes the command line of `vllm serve` as it is. What each option does here is in docs/serve.md; a setting of
Understudy's own ({COMMAND} --help) is taken, too, unless vLLM has an option of that name.
"""
OBSOLETE = {
    "switch": (
        ("disable-log-requests", "enable-reasoning", "use-v2-block-manager")
        + ("disable-frontend-multiprocessing",)
    ),
    "text": (
        ("swap-space", "guided-decoding-backend", "num-scheduler-steps", "max-seq-len-to-capture")
        + ("rope-scaling", "rope-theta", "preemption-mode", "num-lookahead-slots", "speculative-model")
        + ("num-speculative-tokens", "max-num-partial-prefills", "max-long-partial-prefills")
    ),
}  # fmt: skip
"""Options of earlier versions of vLLM, accepted for old command lines."""

CONFIG = "--config"
LEVEL = "--optimization-level"
_NAME = re.compile(r"(?<=--)[^.=]*")
_OBSOLETE = re.compile(r"-O(?==?\w)")
"""Option `-O` joined with its value: `-O3`."""

JsonObject = dict[str, object]
Value = str | bool | list[str]


class Line(Struct):
    given: dict[str, Value]
    """vLLM's options by name, with the positional model as `model`; sizes are plain numbers."""
    flags: Flags


def read(argv: Sequence[str], environ: Mapping[str, str] = NOTHING) -> Line:
    """Parses the command line. ConfigError for words that vLLM's parser would refuse."""
    words = written_out(argv)
    kind = kind_of(words, environ)
    table = table_of(kind)
    parser = plain_parser(conflict_handler="resolve")
    add_settings(parser, table)
    _add_options(parser)
    results = given_to(parser, words, [*options(), *table.by_name])
    model = results.pop(MODEL, None)
    given = {name.removeprefix(OURS): results.pop(name) for name in list(results) if name.startswith(OURS)}
    if model is not None:
        given["model"] = model
    return Line(given, flags_of(results, kind))


def usage(effects: dict[str, str]) -> str:
    """Returns the help; `effects` has option -> effect here, and other options have no effect."""
    parser = plain_parser(usage=USAGE, description=ABOUT)
    _add_options(parser, effects)
    return parser.format_help()


def _add_options(parser: SettingsParser, effects: dict[str, str] | None = None) -> None:
    parser.add_argument(MODEL, metavar="MODEL", nargs="?", help="Name of the model that is played.")
    for name, members in groups().items():
        group = parser.add_argument_group(name.capitalize())
        for option, facts in members.items():
            help = (effects or {}).get(option, "Accepted; changes nothing.").replace("%", "%%")
            _add(group, option, facts, help)
    for option in OBSOLETE["text"]:
        parser.add_argument(f"--{option}", dest=OURS + option, help=argparse.SUPPRESS)
    for option in OBSOLETE["switch"]:
        parser.add_argument(f"--{option}", dest=OURS + option, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-h", "--help", action="store_true", help="Show this text and end.")


def _add(group: argparse._ArgumentGroup, name: str, facts: Option, help: str) -> None:
    names = [f"--{name}", *facts.also]
    if facts.kind != "switch":
        rules: dict[str, Any] = {"nargs": "+"} if facts.many else {}
        metavar = "VALUE" if facts.choices else facts.kind.partition(" ")[0].upper()
        group.add_argument(*names, dest=OURS + name, type=facts.read, metavar=metavar, help=help, **rules)
        return
    group.add_argument(*names, dest=OURS + name, action="store_true", help=help)
    if facts.off:
        off = f"--no-{name}"
        group.add_argument(off, dest=OURS + name, action="store_false", help=argparse.SUPPRESS)


def names_of(name: str) -> Iterator[str]:
    facts = options()[name]
    yield f"--{name}"
    yield from facts.also
    if facts.off:
        yield f"--no-{name}"


def written_out(argv: Sequence[str]) -> list[str]:
    """Expands the YAML file and vLLM's special syntax in `argv` to plain words."""
    words: list[str] = []
    for word in _with_file(list(argv)):
        if word.startswith("--"):
            words.append(_NAME.sub(lambda name: name[0].replace("_", "-"), word, count=1))
        elif found := _OBSOLETE.match(word):
            words += [LEVEL, word[found.end() :].removeprefix("=")]
        else:
            words.append(LEVEL if word == "-O" else word)
    return list(_without_dots(words))


def _with_file(argv: list[str]) -> list[str]:
    at = next((k for k, word in enumerate(argv) if word.partition("=")[0] == CONFIG), None)
    if at is None:
        return argv
    _, equals, path = argv[at].partition("=")
    rest = argv[:at] + argv[at + 1 :]
    if not equals:
        path = rest.pop(at) if at < len(rest) else ""
    if not path:
        raise UsageError(f"flag {CONFIG} needs a value")
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
            if value or option is None or option.off:  # a switch without an off form is off by default
                yield flag if value else f"--no-{key}"
        elif isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
            yield from (flag, *map(str, value)) if value else ()
        elif isinstance(value, list | dict):
            yield from (flag, json.dumps(value))
        elif value is not None:
            yield f"{flag}={value}"


def _without_dots(words: Sequence[str]) -> Iterator[str]:
    """Converts `--a.b 1 --a.c+ x,y` to `--a {"b": 1, "c": ["x", "y"]}`, behind all other words."""
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
        found: object = value
        if name.endswith("+"):
            found = value.split(",")
        else:
            with suppress(ValueError, RecursionError):  # a text that is no JSON stays as it is
                found = json.loads(value)
        for key in reversed(keys):
            found = {key: found}
        assert isinstance(found, dict)
        _merge(objects.setdefault(flag, {}), found)
    for flag, made in objects.items():
        yield from (flag, json.dumps(made))


def _merge(into: JsonObject, more: JsonObject) -> None:
    for key, value in more.items():
        known = into.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            known += value
        else:
            into[key] = value
