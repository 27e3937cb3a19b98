"""Options that a stand-in may get from a stranger's command line, as in a pull request.

A stand-in of a stranger's deployment must not import the stranger's code, open files, or connect to
hosts. So foreign_options.json lists the options that pass, of all versions. An option that is not
listed does not pass: a new option of vLLM is refused until a developer has classified it.
Settings of Understudy never pass. Start reading at `passing_value`.

An option that names a file for vLLM alone, such as a field of `--compilation-config`, passes if no
server of Understudy reads it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from config.sources import FlagValues
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

FILE = Path(__file__).with_name("foreign_options.json")
ALL_FIELDS = "*"
"""Stands for all values of an object whose keys are free."""
DRAFT_CONFIG = "speculative-config"
DRAFT_MODEL = "spec-model"
PARSERS = ("tool-call-parser", "reasoning-parser")
"""Options whose further names only a plugin knows, which does not pass."""


class ForeignOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of foreign_options.json; all options are without dashes in front."""

    passes: frozenset[str]
    """Options that import, open, and connect nothing."""
    values: Mapping[str, str]
    """Option -> pattern of the values that import, open, and connect nothing; only these pass."""
    alters_answers: frozenset[str]
    """Options that do not pass, and without which a server may answer otherwise."""
    alters_nothing: frozenset[str]
    """Options that do not pass, and without which a server answers as before: those of the machine,
    of the network, and of logs."""
    modules: Mapping[str, str]
    """Option that names code for the server to import -> field with the name; empty for all of the
    value."""


@cache
def foreign_options() -> ForeignOptions:
    """Returns the content of the file."""
    return msgspec.json.decode(FILE.read_bytes(), type=ForeignOptions)


def passing_value(name: str, value: str | list[str]) -> str | list[str] | None:
    """Returns the value that a stand-in may get of an option; None for one that does not pass."""
    options = foreign_options()
    texts = value if isinstance(value, list) else [value]
    # A word of a file of options may look like another flag, and no process takes a zero byte.
    if any(text.startswith("-") or "\0" in text for text in texts):
        return value if _is_number(value) else None
    if name in options.values:
        pattern = options.values[name]
        return value if all(re.fullmatch(pattern, text) for text in texts) else None
    if name not in options.passes:
        return None
    if name == DRAFT_MODEL:
        return PurePosixPath(str(value)).name
    if name == DRAFT_CONFIG:
        return _without_folder(str(value))
    return value


def may_alter_answers(name: str) -> bool:
    """Returns whether a server without an option that does not pass may answer otherwise."""
    return name not in foreign_options().alters_nothing


def modules_in(values: FlagValues) -> Iterator[tuple[str, str]]:
    """Yields the options that name code for the server to import, and the names of the code."""
    options = foreign_options()
    for option, field in options.modules.items():
        value = values.get(option, "")
        texts = value if isinstance(value, list) else [value]
        for text in texts:
            for name in _names_in(text, field):
                own_pattern = options.values.get(option)
                if name and not (own_pattern and re.fullmatch(own_pattern, name)):
                    yield option, name


def _names_in(text: str, field: str) -> Iterator[str]:
    if not field:
        yield text
        return
    document = _object(text)
    names = document.values() if field == ALL_FIELDS else [document.get(field)]
    for name in names:
        if isinstance(name, str):
            yield name


def _without_folder(text: str) -> str:
    """Returns a speculative configuration whose model is a name, and not the path of a folder."""
    config = _object(text)
    model = config.get("model")
    if not isinstance(model, str) or not model:
        return text
    return json.dumps({**config, "model": PurePosixPath(model).name})


def _object(text: str) -> Mapping[str, object]:
    """Returns a JSON object; an empty one for another text."""
    try:
        document = decode_untrusted(text, decoder=python_json)
    except UntrustedDataError:
        return {}
    return document if isinstance(document, dict) else {}


def _is_number(value: str | list[str]) -> bool:
    return isinstance(value, str) and re.fullmatch(r"-[0-9.]{1,32}", value) is not None
