"""The command line: every setting is a flag of argparse. Other commands' parsers use these parts, too."""

import argparse
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from itertools import takewhile
from types import MappingProxyType
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from config.declaration import DURATION, JSON, OBJECTS, ConfigError, UsageError
from config.durations import parse_duration
from config.installation import COMMAND
from config.kinds import LIST, SWITCH
from config.plugins import settings_kind
from config.settings import BY_NAME, Setting, Settings, Table, table_of
from config.sources import IGNORED, IGNORED_SWITCHES, Flags, Sources, ignored
from config.validation import suggestion

ABOUT = """\
Plays a vLLM server on one port. A setting is taken from its flag, else from its environment variable, else
from the YAML file (--config, SIM_CONFIG), else it has its default. --no-NAME turns a switch off.
DURATION is 250ms, 1.5s or 1m30s (units ns, us, ms, s, m, h); a whole number without a unit is milliseconds.
"""
REPEATED = "plugin"
"""The only list whose flag may be repeated: each flag adds an item."""
NOTHING: Mapping[str, str] = MappingProxyType({})
DETAILED, TRACED = 4, 5
"""Least klog verbosities for the levels debug and trace."""
_METAVARS = {"text": "TEXT", "whole number": "NUMBER", "number": "NUMBER", "switch": "true|false"} | {
    "list": "TEXT",
    DURATION: "DURATION",
    JSON: "JSON",
    OBJECTS: "JSON",
}
_FLAG = re.compile(r"--[\w-]+", re.ASCII)
_NO_FLAG = re.compile("-[^-]")
"""Values with one leading dash, such as `-1ms`. argparse matches known short flags first."""


P = ParamSpec("P")
T = TypeVar("T")


def as_command(*errors: type[Exception]) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Decorates a function that returns an exit status: ConfigError, `errors` and Ctrl-C print one line."""

    told: tuple[type[Exception], ...] = (ConfigError, *errors)

    def decorate(run: Callable[P, int]) -> Callable[P, int]:
        @wraps(run)
        def status(*args: P.args, **kwargs: P.kwargs) -> int:
            try:
                return run(*args, **kwargs)
            except told as error:
                print(f"error: {error}", file=sys.stderr)
                return getattr(error, "status", 1)
            except KeyboardInterrupt:
                print("error: interrupted; nothing was written", file=sys.stderr)
                return 1

        return status

    return decorate


class SettingsParser(argparse.ArgumentParser):
    """Raises UsageError, in one line, for an invalid command line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class FlagParser(SettingsParser):
    """Parser of a command; reports an unknown flag, with the nearest name, before a missing flag."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._check(args or (), self._names())
        return super().parse_args(args, namespace)

    def parse_beside_settings(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Splits words into flags of the command and flags of settings. UsageError for other flags."""
        words = [_with_dashes(word) for word in words]
        settings = settings_parser(table_of(kind_of(words, NOTHING)))
        self._check(words, [*self._names(), *settings._option_string_actions])
        return self.parse_known_args(words)

    def _check(self, words: Sequence[str], names: Iterable[str]) -> None:
        known = set(names)
        for name in takewhile("--".__ne__, (word.partition("=")[0] for word in words)):
            if _FLAG.fullmatch(name) and name not in known:
                raise _unknown(name, [flag.lstrip("-") for flag in known])

    def _names(self) -> Iterator[str]:
        yield from self._option_string_actions
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._option_string_actions


def _unknown(flag: str, names: Iterable[str]) -> UsageError:
    return UsageError(f"unknown flag {flag}{suggestion(flag.lstrip('-'), '--', names)}")


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a type of argparse for whole numbers from `least` to `most`."""
    wanted = f"from {least} on" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or not least <= int(text) <= (most or math.inf):
            raise ValueError(f"must be a whole number {wanted}")
        return int(text)

    return as_argument(read)


def number_of(low: float, high: float, zero: bool = False) -> Callable[[str], float]:
    """Returns a type of argparse for numbers above `low` (with `zero`, from `low`) up to `high`."""
    wanted = f"from {low:g} to" if zero else f"above {low:g}, at most"

    def read(text: str) -> float:
        number = math.nan
        with suppress(ValueError):
            number = float(text)
        if not low <= number <= high or (number == low and not zero):
            raise ValueError(f"must be a number {wanted} {high:,.0f}")
        return number

    return as_argument(read)


def duration_of(most_s: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        seconds = parse_duration(text)
        if not 0 <= seconds <= most_s:
            raise ValueError(f"must be from 0 to {most_s / 3600:g}h")
        return seconds

    return as_argument(read)


def as_argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Returns a type of argparse from a function that raises ValueError with a rule."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {error}") from None

    return convert


def parse(argv: Sequence[str], environ: Mapping[str, str] = NOTHING) -> Flags:
    """Parses the command line, with the flags of plugins that any source names. May raise ConfigError."""
    words = [_with_dashes(word) for word in argv]
    kind = kind_of(words, environ)
    table = table_of(kind)
    flags = flags_of(given_to(settings_parser(table), words, table.by_name), kind)
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
    parser = plain_parser(allow_abbrev=False)
    parser.add_argument("--config")
    for row in table_of(Settings).rows:
        if row.group == "plugins":
            _add(parser, row, with_help=False)
    try:
        values = vars(parser.parse_known_args(words)[0])
    except (ConfigError, argparse.ArgumentError):  # `given_to` reports the error later
        values = {}
    return settings_kind(Sources(flags_of(values, None), environ, warn=lambda text: None))


def given_to(parser: SettingsParser, words: Sequence[str], names: Iterable[str] = BY_NAME) -> dict[str, Any]:
    """Returns destination -> value. ConfigError for unknown flags, with the nearest of `names`."""
    try:
        given, strays = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        flag, flaw = (error.argument_name or "").partition("/")[0], error.message
        if flaw == "expected one argument":
            raise UsageError(f"flag {flag} needs a value") from None
        if flaw.startswith("ignored explicit argument"):
            raise UsageError(f"flag {flag} takes no value") from None
        raise UsageError(f"flag {flag}: {flaw}") from None
    for word in strays:
        name = word.partition("=")[0]
        if name.startswith("--"):
            raise _unknown(name, names)
        raise UsageError(f"unexpected argument {word!r}: settings are given as --name value")
    return vars(given)


def flags_of(values: dict[str, Any], kind: type[Settings] | None) -> Flags:
    """Converts the results of a `settings_parser` to flags."""
    flags = Flags(kind=kind, **{name: values.pop(name) for name in Flags.__struct_fields__ if name in values})
    if (level := values.pop("v", None)) is not None:
        values.setdefault("log-level", level)
    for name, value in values.items():
        flags.values[name] = [item for item in value if item] if isinstance(value, list) else value
    return flags


def usage(table: Table) -> str:
    return settings_parser(table, with_help=True).format_help()


def plain_parser(**options: Any) -> SettingsParser:
    """Returns a parser without flags; errors raise, and absent flags have no result."""
    return SettingsParser(
        prog=COMMAND,
        formatter_class=partial(_Help, max_help_position=38, width=100),
        argument_default=argparse.SUPPRESS,
        add_help=False,
        exit_on_error=False,
        **options,
    )


def settings_parser(table: Table, with_help: bool = False) -> SettingsParser:
    usage = f"{COMMAND} [--config FILE] [--setting value ...]"
    parser = plain_parser(usage=usage, description=ABOUT, allow_abbrev=False)
    add_settings(parser, table, with_help)
    parser._negative_number_matcher = _NO_FLAG
    return parser


def add_settings(parser: SettingsParser, table: Table, with_help: bool = False) -> None:
    """Adds a flag for every setting, and the flags that are accepted and ignored."""
    for name in table.sections:
        add_section(parser, table, name, with_help)
    others = parser.add_argument_group("Others")
    others.add_argument("--config", metavar="FILE", help="YAML file with settings.")
    levels = "klog verbosity: 0 and 1 log warnings, 2 and 3 info, 4 debug, 5 and more trace."
    others.add_argument("-v", "--v", metavar="N", type=_log_level, help=levels)
    others.add_argument("--version", action="store_true", help="Show the version of this program and end.")
    others.add_argument("-h", "--help", action="store_true", help="Show this text and end.")
    for name in sorted(IGNORED):
        switch = name in IGNORED_SWITCHES
        forms = [f"--{name}", f"--no-{name}"] if switch else [f"--{name}"]
        read = as_argument(SWITCH.read) if switch else str
        rules: dict[str, Any] = {"dest": "warnings", "nargs": "?", "type": read}
        parser.add_argument(*forms, action=_Ignored, help=argparse.SUPPRESS, **rules)


def add_section(parser: argparse.ArgumentParser, table: Table, name: str, with_help: bool = True) -> None:
    """Adds a flag for every setting of one section. Texts of help are slow to read."""
    group = parser.add_argument_group((table.sections[name].__doc__ or "").rstrip("."))
    for row in table.rows:
        if row.group == name:
            _add(group, row, with_help)


def _add(group: argparse._ActionsContainer, row: Setting, with_help: bool) -> None:
    kind, default = row.kind.name, row.write(row.default)
    metavar = _METAVARS.get(kind) or kind.removeprefix("one of ").replace(", ", "|")
    options: dict[str, Any] = {"metavar": metavar, "help": argparse.SUPPRESS}
    several = kind in ("list", OBJECTS)
    if with_help:
        others = f" Also {', '.join(f'--{name}' for name in row.about.also)}." if row.about.also else ""
        shown = f" [{default}]" if default and not several else ""
        options["help"] = (row.help + others + shown).replace("%", "%%")
    if several:
        options |= {"nargs": "*", "action": "extend" if row.name == REPEATED else "store"}
    if kind == "switch":
        options |= {"nargs": "?", "const": "true"}
    for name in row.names:
        group.add_argument(f"--{name}", dest=name, **options)
        options["help"] = argparse.SUPPRESS
        if kind == "switch":
            hidden: dict[str, Any] = {"action": "store_const", "const": "false", "help": argparse.SUPPRESS}
            group.add_argument(f"--no-{name}", dest=name, **hidden)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help formatter that breaks no line within a setting's name."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


class _Ignored(argparse.Action):
    """Warns that a flag is accepted and ignored."""

    def __call__(self, parser: object, namespace: object, values: object, flag: str | None = None) -> None:
        told = ignored(str(flag).lstrip("-").removeprefix("no-"), f"flag {flag}")
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, []), told])


def _with_dashes(word: str) -> str:
    """Replaces underscores in a flag's name by dashes; YAML keys may have underscores, too."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if _FLAG.fullmatch(name) else word


def _log_level(text: str) -> str:
    """Converts klog's ``-v N`` to a log level; an explicit `--log-level` is stronger."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number")
    level = int(text[:3])
    if level >= DETAILED:
        return "trace" if level >= TRACED else "debug"
    return "info" if level > 1 else "warning"
