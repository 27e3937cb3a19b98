"""The command line of a server: every setting is a flag."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, cast

from config.declaration import COMMAND, DURATION, JSON, OBJECTS, SIZE, UsageError
from config.flag_words import Flag, read_words, unexpected_argument
from config.kinds import LIST, SWITCH
from config.plugins import settings_kind
from config.settings import PluginSettings, Setting, Settings, Table, rows, table_of
from config.sources import (
    IGNORED,
    IGNORED_SWITCHES,
    REMOVED,
    Flags,
    FlagValues,
    Sources,
    ignore_warning,
    ignored,
    removed,
)

ABOUT = f"""\
usage: {COMMAND} run [--config FILE] [--setting value ...]

Simulates a vLLM server on one port. The value of a setting comes from the first of these sources
that has one: its flag, its environment variable, the YAML file (--config, SIM_CONFIG), the default.
--no-NAME turns a switch off.
DURATION is 250ms, 1.5s or 1m30s (units ns, us, ms, s, m, h); \
a whole number without a unit is milliseconds.
"""
USUAL_ABOUT = f"""\
usage: {COMMAND} run [--config FILE] [--setting value ...]

Starts a stand-in for vLLM on 127.0.0.1, port 8000; --host 0.0.0.0 opens it to other machines.
`{COMMAND} serve MODEL` takes vLLM's own options instead.

Examples:
"""
USUAL_END = """
--help=all lists all settings, and --help=WORD those whose names contain WORD. A flag takes
precedence over its variable (SIM_PORT), which takes precedence over the file (--config).
"""
USUAL_EXAMPLES = (
    "--port 8001 --api-key secret",
    "--script understudy/replies.yaml --console",
    "--profile qwen3-14b-h100 --vllm-version 0.27",
    "--replay session.jsonl --replay-miss not-found",
)
USUAL_SETTINGS = (
    "port",
    "api-key",
    "model",
    "vllm-version",
    "profile",
    "max-model-len",
    "max-num-seqs",
    "script",
    "replay",
    "journal",
    "console",
    "seed",
)
"""The settings that most people change: the help without a keyword.

The whole list has 900 lines, so the port is hard to find there. A name is left out where its
extension has been removed.
"""
LOG_LEVELS = ("warning", "warning", "info", "info", "debug", "trace")
"""Log levels of klog's verbosities."""
SEARCH = "--help="
ALL = "all"
INDENT = 38
"""Column at which texts of help begin."""
WIDTH = 100
"""Maximum length of a line of help."""
METAVARS = {
    "text": "TEXT",
    "whole number": "NUMBER",
    "number": "NUMBER",
    "switch": "[true|false]",
    "list": "[TEXT ...]",
    DURATION: "DURATION",
    JSON: "JSON",
    SIZE: "SIZE",
    OBJECTS: "[JSON ...]",
}


def parse(argv: Sequence[str], environ: Mapping[str, str], base: type[Settings]) -> Flags:
    """Parses flags of the settings `base`, and of the plugins that any source names.

    Raises:
        ConfigError: A flag is wrong, or a plugin cannot be imported.
    """
    kind = find_settings_kind(argv, environ, base)
    table = table_of(kind)
    values, others = read_words(argv, setting_flags(table))
    if others:
        raise unexpected_argument(others[0])
    flags = flags_of(values, kind)
    for name, value in flags.values.items():
        if isinstance(value, list) and table.by_name[name].kind is LIST:
            flags.values[name] = [item for word in value for item in _list_items(word)]
    return flags


def find_settings_kind(
    words: Sequence[str], environ: Mapping[str, str], base: type[Settings]
) -> type[Settings]:
    """Returns `base` with the plugins that `words`, `environ` or the YAML file name."""
    flags = [config_flag()]
    for row in rows("plugins", PluginSettings):
        flags += _flags(row)
    values: FlagValues = {}
    with suppress(UsageError):  # `parse` reports the error later
        values, _ = read_words(words, flags, skips_unknown=True)
    sources = Sources(flags_of(values, None), environ, ignore_warning)
    return settings_kind(sources, base)


def flags_of(values: FlagValues, kind: type[Settings] | None) -> Flags:
    """Sorts the results of `read_words`.

    Raises:
        ConfigError: A flag is that of a removed setting.
    """
    flags = Flags(kind=kind, help="help" in values, version="version" in values)
    for name, value in values.items():
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
    yield from other_flags()
    for row in table.rows:
        yield from _flags(row)


def config_flag() -> Flag:
    """Returns the flag of the YAML file."""
    return Flag(name="config", forms=("--config",), metavar="FILE", help="YAML file with settings.")


def help_flag() -> Flag:
    """Returns the flag that shows the help."""
    return Flag(
        name="help", forms=("-h", "--help"), takes="nothing", help="Show this text and exit."
    )


def other_flags() -> tuple[Flag, ...]:
    """Returns the flags that are not settings."""
    return (
        config_flag(),
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
            help="Show the versions of this program and of the simulated vLLM, and exit.",
        ),
        help_flag(),
    )


def without_keyword(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the keyword of `--help=KEYWORD`, and the words with `--help` instead."""
    keyword = ""
    words = []
    for word in argv:
        if word.startswith(SEARCH):
            keyword = word.removeprefix(SEARCH).lower().replace("_", "-")
            word = "--help"
        words.append(word)
    return keyword, words


def usage(table: Table, keyword: str = "") -> str:
    """Returns the help of the server: the usual settings of `table`, or a selection by keyword."""
    if not keyword:
        return _usual_help(table)
    groups: dict[str, list[Flag]] = {}
    for row in table.rows:
        title = (row.section.__doc__ or "").rstrip(".")
        groups.setdefault(title, []).append(_described_flag(row, row.help))
    groups["Others"] = list(other_flags())
    if keyword == ALL:
        return ABOUT + help_text(groups)
    return matching_help(groups, keyword)


def _usual_help(table: Table) -> str:
    """Returns the help of one screen, with the first sentence about each usual setting."""
    lines = []
    for example in USUAL_EXAMPLES:
        names = [word[2:] for word in example.split() if word.startswith("--")]
        if all(name in table.by_name for name in names):
            lines.append(f"  {COMMAND} run {example}")
    flags = [_brief_flag(table.by_name[name]) for name in USUAL_SETTINGS if name in table.by_name]
    settings = help_text({"Usual settings": [*flags, *other_flags()]})
    return USUAL_ABOUT + "\n".join(lines) + "\n" + settings + "\n" + USUAL_END.rstrip()


def _brief_flag(row: Setting) -> Flag:
    """Returns the flag of a setting with the first sentence of its help."""
    return _described_flag(row, row.help.partition(". ")[0].rstrip(".") + ".")


def matching_help(groups: Mapping[str, Sequence[Flag]], keyword: str) -> str:
    """Returns the help that a keyword selects, as in vLLM.

    A keyword is the title of a group, or a part of names of flags.
    """
    for title, flags in groups.items():
        if title.lower() == keyword:
            return help_text({title: flags})
    matches = [
        flag
        for flags in groups.values()
        for flag in flags
        if flag.help and any(keyword in form for form in flag.forms)
    ]
    if matches:
        return help_text({f"Arguments matching '{keyword}'": matches})
    return (
        f"No group or arguments matching '{keyword}'.\n"
        "Use '--help=all' to see all options, or the name of a group:\n  " + "\n  ".join(groups)
    )


def help_text(groups: Mapping[str, Iterable[Flag]]) -> str:
    """Returns the lines of help for flags, by the title of their group."""
    lines = []
    for title, flags in groups.items():
        lines += ["", f"{title}:"]
        for flag in flags:
            head = f"  {', '.join(flag.forms)} {flag.metavar}".rstrip()
            text = textwrap.wrap(flag.help, WIDTH - INDENT, break_on_hyphens=False)
            if text and len(head) > INDENT - 2:
                lines.append(head)
                head = ""
            for line in text:
                lines.append(f"{head:{INDENT}}{line}")
                head = ""
    return "\n".join(lines)


def _list_items(word: str) -> Sequence[str]:
    """Returns the items of a text with commas, or of a JSON array, as in variables."""
    with suppress(ValueError):
        return cast("Sequence[str]", LIST.read(word)) or [word]
    return [word]


def _flags(row: Setting) -> Iterator[Flag]:
    """Yields the flags of a setting, under all of its names."""
    is_switch = row.kind is SWITCH
    takes: Literal["any", "maybe", "one"] = "one"
    if _is_list(row):
        takes = "any"
    elif is_switch:
        takes = "maybe"
    for name in row.names:
        yield Flag(name=name, forms=(f"--{name}",), takes=takes, repeated=row.about.repeated)
        if is_switch:
            yield Flag(name=name, forms=(f"--no-{name}",), takes="nothing", const="false")


def _described_flag(row: Setting, text: str) -> Flag:
    """Returns the flag of a setting for the help, with `text` about it."""
    if row.about.also:
        text += f" Also {', '.join(f'--{name}' for name in row.about.also)}."
    default = row.write(row.default)
    if default and not _is_list(row):
        text += f" [{default}]"
    kind = row.kind.name
    metavar = METAVARS.get(kind) or kind.removeprefix("one of ").replace(", ", "|")
    return Flag(name=row.name, forms=(f"--{row.name}",), metavar=metavar, help=text)


def _is_list(row: Setting) -> bool:
    return row.kind.name in ("list", OBJECTS)


def _log_level(text: str) -> str:
    """Converts klog's ``-v N`` to a log level; an explicit `--log-level` takes precedence."""
    if not text.isdecimal():
        raise ValueError("must be a whole number")
    return LOG_LEVELS[min(int(text[:3]), len(LOG_LEVELS) - 1)]
