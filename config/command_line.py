"""The command line of a server:

every setting is a flag. No argparse: its 500 flags would slow each start.
"""

import re
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, cast

from msgspec import Struct

from config.declaration import COMMAND, DURATION, JSON, OBJECTS, UsageError, shown, suggestion
from config.kinds import LIST, SWITCH
from config.plugins import settings_kind
from config.settings import Setting, Settings, Table, table_of
from config.sources import (
    IGNORED,
    IGNORED_SWITCHES,
    REMOVED,
    Flags,
    Given,
    Sources,
    ignored,
    removed,
)

ABOUT = f"""\
usage: {COMMAND} [--config FILE] [--setting value ...]

Plays a vLLM server on one port. A setting is taken from its flag, else from its environment variable, else
from the YAML file (--config, SIM_CONFIG), else it has its default. --no-NAME turns a switch off.
DURATION is 250ms, 1.5s or 1m30s (units ns, us, ms, s, m, h); a whole number without a unit is milliseconds.
"""
REPEATED = ("plugin", "target")
"""Lists whose flags may be repeated: each flag adds an item."""
LEVELS = ("warning", "warning", "info", "info", "debug", "trace")
"""Log levels of klog's verbosities."""
INDENT, WIDTH = 38, 100
"""Column at which texts of help begin, and longest line."""
METAVARS = {
    **{"text": "TEXT", "whole number": "NUMBER", "number": "NUMBER", "switch": "[true|false]"},
    **{"list": "[TEXT ...]", DURATION: "DURATION", JSON: "JSON", OBJECTS: "[JSON ...]"},
}
_JOINED = re.compile(r"(-[vO])(\d.*)")
"""A whole word that joins a flag with its value: `-v5`, `-O3`."""


class Flag(Struct, frozen=True, kw_only=True):
    name: str
    """Key of the value among the results; another name of a setting has another key."""
    forms: tuple[str, ...]
    takes: Literal["nothing", "maybe", "one", "any", "some"] = "one"
    """Number of words behind the flag; `some` is one at least."""
    const: str = "true"
    """Value without a word."""
    read: Callable[[str], object] = str
    """Raises ValueError, with the rule, for a wrong word."""
    metavar: str = ""
    help: str = ""
    """Empty for a flag that the help does not show."""


def read_words(
    words: Iterable[str], flags: Iterable[Flag], shortened: bool = False, known_only: bool = False
) -> tuple[Given, list[str]]:
    """Returns values by name, and words that belong to no flag. UsageError for a wrong or unknown
    flag.

    `shortened` accepts beginnings of flags; `known_only` skips unknown flags. An empty word that is
    not the value of a flag is ignored: manifests whose arguments come from templates pass such
    words.
    """
    by_form = {form: flag for flag in flags for form in flag.forms}
    given = Given()
    others: list[str] = []
    waiting = deque(words)
    while waiting:
        word = waiting.popleft()
        if not word:
            continue
        form, text = _split_flag(word)
        if form not in by_form:
            if known_only or not form.startswith("--"):
                others.append(word)
                continue
            form = _full_form(form, by_form, shortened)
        flag = by_form[form]
        if text is None:
            values = _values_behind(flag, waiting, by_form)
        elif flag.takes == "nothing":
            raise UsageError(f"flag {form} takes no value")
        else:
            values = [text]
        if not values and flag.takes in ("one", "some"):
            raise UsageError(f"flag {form} needs a value")
        given[flag.name] = _value(form, flag, values, given.get(flag.name))
    return given, others


def _split_flag(word: str) -> tuple[str, str | None]:
    """Returns the flag with dashes for underscores, and the value in the same word; None without
    one.
    """
    joined = _JOINED.fullmatch(word)
    if joined is not None:
        return joined[1], joined[2]
    form, equals, text = word.partition("=")
    if form.startswith("--"):
        form = form.replace("_", "-")
    return form, text if equals else None


def _values_behind(flag: Flag, waiting: deque[str], by_form: Mapping[str, Flag]) -> list[str]:
    """Removes the values of a flag from the `waiting` words, and returns them.

    An empty word is a value of a flag that needs one (`--api-key ""`), but never of a switch.
    """
    if flag.takes == "nothing":
        return []
    max_values = 1 if flag.takes in ("maybe", "one") else len(waiting)
    values: list[str] = []
    while waiting and len(values) < max_values:
        word = waiting[0]
        if word.startswith("--") or _split_flag(word)[0] in by_form:
            break
        if not word and flag.takes == "maybe":
            break
        values.append(waiting.popleft())
    return values


def _value(
    form: str, flag: Flag, words: list[str], before: str | list[str] | None
) -> str | list[str]:
    values = []
    for word in words:
        try:
            values.append(str(flag.read(word)))
        except ValueError as error:
            raise UsageError(f"flag {form}: {shown(word)} {error}") from None
    if flag.takes not in ("any", "some"):
        return values[0] if values else flag.const
    values = [value for value in values if value]
    return [*before, *values] if flag.name in REPEATED and isinstance(before, list) else values


def _full_form(form: str, forms: Iterable[str], shortened: bool) -> str:
    found = sorted(each for each in forms if shortened and len(form) > 2 and each.startswith(form))
    if len(found) > 1:
        raise UsageError(f"ambiguous option: {form} could match {', '.join(found)}")
    if not found:
        raise unknown_flag(form, forms)
    return found[0]


def unknown_flag(form: str, forms: Iterable[str]) -> UsageError:
    names = [
        name
        for name in (each.lstrip("-") for each in forms)
        if name not in IGNORED | REMOVED.keys()
    ]
    return UsageError(f"unknown flag {form}{suggestion(form.lstrip('-'), names, '--')}")


def parse(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Flags:
    """Parses the command line, with the flags of plugins that any source names.

    May raise ConfigError.
    """
    kind = kind_of(argv, environ or {})
    table = table_of(kind)
    given, others = read_words(argv, setting_flags(table))
    if others:
        raise UsageError(f"unexpected argument {others[0]!r}: settings are given as --name value")
    flags = flags_of(given, kind)
    for name, value in flags.values.items():
        if isinstance(value, list) and table.by_name[name].kind is LIST:
            flags.values[name] = [item for word in value for item in _items(word)]
    return flags


def _items(word: str) -> Sequence[str]:
    """Returns the items of a text with commas, or of a JSON array, as in variables."""
    with suppress(ValueError):
        return cast("Sequence[str]", LIST.read(word)) or [word]
    return [word]


def kind_of(words: Sequence[str], environ: Mapping[str, str]) -> type[Settings]:
    """Returns the kind of settings with the plugins that `words`, `environ` or the YAML file name."""
    rows = (row for row in table_of(Settings).rows if row.group == "plugins")
    flags, given = [OTHERS[0], *(flag for row in rows for flag in _flags(row))], Given()
    with suppress(UsageError):  # `parse` reports the error later
        given = read_words(words, flags, known_only=True)[0]
    return settings_kind(Sources(flags_of(given, None), environ, warn=lambda text: None))


def flags_of(given: Given, kind: type[Settings] | None) -> Flags:
    """Sorts the results of `read_words`. Raises ConfigError for the flag of a removed setting."""
    flags = Flags(kind=kind, help="help" in given, version="version" in given)
    for name, value in given.items():
        if name.startswith("--"):
            setting = name.removeprefix("--no-").lstrip("-")
            if setting in REMOVED:
                raise removed(setting, f"flag {name}")
            flags.warnings.append(ignored(f"flag {name}"))
        elif name == "config":
            flags.config = str(value)
        elif name == "v":
            flags.values.setdefault("log-level", value)
        elif name not in ("help", "version"):
            flags.values[name] = value
    return flags


def setting_flags(table: Table) -> Iterator[Flag]:
    """Yields the flags of all settings, and the flags that are ignored or rejected."""
    for name in (*IGNORED, *REMOVED):
        for form in (f"--{name}", f"--no-{name}"):
            read = SWITCH.read if name in IGNORED_SWITCHES else str
            yield Flag(name=form, forms=(form,), takes="maybe", read=read)
    yield from OTHERS
    for row in table.rows:
        yield from _flags(row)


def usage(table: Table) -> str:
    groups: dict[str, list[Flag]] = {}
    for row in table.rows:
        groups.setdefault((row.section.__doc__ or "").rstrip("."), []).extend(
            _flags(row, with_help=True)
        )
    return ABOUT + help_text({**groups, "Others": [*OTHERS]})


def help_text(groups: Mapping[str, Iterable[Flag]]) -> str:
    lines = []
    for title, flags in groups.items():
        lines += ["", f"{title}:"]
        for flag in flags:
            head = f"  {', '.join(flag.forms)} {flag.metavar}".rstrip()
            text = textwrap.wrap(flag.help, WIDTH - INDENT, break_on_hyphens=False)
            if text and len(head) > INDENT - 2:
                lines.append(head)
                head = ""
            lines += [f"{head if not k else '':{INDENT}}{line}" for k, line in enumerate(text)]
    return "\n".join(lines)


def _flags(row: Setting, with_help: bool = False) -> Iterator[Flag]:
    """Yields the flags of a setting. Texts of help are slow to read."""
    kind, default = row.kind.name, row.write(row.default)
    metavar = METAVARS.get(kind) or kind.removeprefix("one of ").replace(", ", "|")
    several, switch, help = kind in ("list", OBJECTS), row.kind is SWITCH, ""
    if with_help:
        others = (
            f" Also {', '.join(f'--{name}' for name in row.about.also)}." if row.about.also else ""
        )
        help = row.help + others + (f" [{default}]" if default and not several else "")
    takes: Literal["any", "maybe", "one"] = "any" if several else "maybe" if switch else "one"
    forms = (f"--{row.name}",) if with_help else tuple(f"--{name}" for name in row.names)
    for form in forms:
        yield Flag(name=form[2:], forms=(form,), takes=takes, metavar=metavar, help=help)
        if switch and not with_help:
            yield Flag(name=form[2:], forms=(f"--no-{form[2:]}",), takes="nothing", const="false")


def _log_level(text: str) -> str:
    """Converts klog's ``-v N`` to a log level; an explicit `--log-level` is stronger."""
    if not text.isdecimal():
        raise ValueError("must be a whole number")
    return LEVELS[min(int(text[:3]), len(LEVELS) - 1)]


OTHERS = (
    Flag(name="config", forms=("--config",), metavar="FILE", help="YAML file with settings."),
    Flag(
        name="v",
        forms=("-v", "--v"),
        metavar="N",
        read=_log_level,
        help="klog verbosity: 0 and 1 log warnings, 2 and 3 info, 4 debug, 5 and more trace.",
    ),
    Flag(
        name="version",
        forms=("--version",),
        takes="nothing",
        help="Show the versions of this program and of the vLLM that it plays, and end.",
    ),
    Flag(name="help", forms=("-h", "--help"), takes="nothing", help="Show this text and end."),
)
