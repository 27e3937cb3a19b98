"""Flags of the other commands: an argparse parser, and the kinds of their values."""

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from itertools import takewhile
from typing import Any, NoReturn, ParamSpec, TypeAlias, TypeVar

from config.command_line import find_settings_kind, setting_flags
from config.declaration import ConfigError, UsageError
from config.durations import format_duration, parse_duration
from config.flag_words import unexpected_argument, unknown_flag
from config.printable import one_line
from config.settings import Settings, table_of
from config.sizes import parse_count, parse_size

MAX_USAGE_LINES = 12
"""Lines of a usage with the names of all flags."""
_FLAG = re.compile(r"--[\w-]+", re.ASCII)
_FLAG_HEADING = re.compile(r"(\n(?:positional arguments|options):\n)")
"""The heading of the first group of flags in a help."""

AddArgument: TypeAlias = Callable[..., argparse.Action]
"""Adds an argument to a parser, or to a group of its flags."""
FlagTable: TypeAlias = dict[str, bool | str | list[str]]
"""Flags by name, without dashes: True or False for a switch, else its value or values as text."""

P = ParamSpec("P")
T = TypeVar("T")
Number = TypeVar("Number", int, float)


def as_command(*errors: type[Exception]) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Decorates a function that returns an exit status.

    The decorated function prints one line for ConfigError, `errors`, OSError and Ctrl-C. A closed
    standard output is left to the caller.
    """
    reported: tuple[type[Exception], ...] = (ConfigError, *errors)

    def decorate(run: Callable[P, int]) -> Callable[P, int]:
        @wraps(run)
        def status(*args: P.args, **kwargs: P.kwargs) -> int:
            try:
                return run(*args, **kwargs)
            except reported as error:
                print(f"error: {one_line(error)}", file=sys.stderr)
                return getattr(error, "status", 1)
            except KeyboardInterrupt:
                print("error: interrupted; nothing was written", file=sys.stderr)
            except BrokenPipeError:
                raise
            except OSError as error:
                reason = f"{error.filename or 'failed'}: {error.strerror or error}"
                print(f"error: {one_line(reason)}", file=sys.stderr)
            return 1

        return status

    return decorate


class FlagParser(argparse.ArgumentParser):
    """A parser that raises UsageError for a wrong command line.

    It reports an unknown flag first, with a similar flag.
    """

    examples: Sequence[str] = ()
    """Command lines that the help shows before the flags. A test runs each command line."""
    notes = ""
    """Text that the help shows between the examples and the flags, with its line breaks."""

    def format_usage(self) -> str:
        """Returns the usage, without the names of the flags if they would fill a screen."""
        usage = super().format_usage()
        if usage.count("\n") <= MAX_USAGE_LINES:
            return usage
        return f"usage: {self.prog} [flags]\n"

    def format_help(self) -> str:
        """Returns the help: usage, description, examples, and then the flags."""
        text = super().format_help()
        _, _, rest = text.partition(super().format_usage())
        if self.examples:
            description, separator, flags = _FLAG_HEADING.split(rest, maxsplit=1)
            lines = "\n".join(f"  {example}" for example in self.examples)
            notes = f"\n{self.notes}" if self.notes else ""
            rest = f"{description}\nexamples:\n{lines}\n{notes}{separator}{flags}"
        return f"{self.format_usage()}{rest}"

    def error(self, message: str) -> NoReturn:
        """Raises UsageError, where argparse would exit."""
        raise UsageError(message)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Returns the value of a flag. In Python 3.11, that of `--flag=--` would be no text."""
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            raise UsageError(f"argument {'/'.join(action.option_strings)}: expected one argument")
        return super()._get_values(action, arg_strings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses `args`, after a check for unknown flags."""
        self._check(args or (), self._forms())
        return super().parse_args(args, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parses `args`, and returns the words that belong to no flag, too."""
        if args is not None:
            flags = list(takewhile("--".__ne__, args))
            args = [*map(self._declared, flags), *args[len(flags) :]]
        return super().parse_known_args(args, namespace)

    def parse_beside_settings(
        self, words: Sequence[str], base: type[Settings], plugins_only: bool = False
    ) -> tuple[argparse.Namespace, list[str]]:
        """Splits words into flags of the command and flags of the settings `base` and of plugins.

        Raises:
            UsageError: A flag is neither. With `plugins_only`, only settings of plugins are valid.
        """
        kind = find_settings_kind(words, {}, base)
        table = table_of(kind)
        forms = list(self._forms())
        names = set(table.by_name)
        if plugins_only:
            groups = {"plugins", *(plugin.group for plugin in kind.PLUGINS)}
            names = {name for name, row in table.by_name.items() if row.group in groups}
        for flag in setting_flags(table):
            if not plugins_only or flag.name in names:
                forms += flag.forms
        self._check(words, forms)
        return self.parse_known_args(words)

    def actions(self) -> Mapping[str, argparse.Action]:
        """Returns the action of each form of a flag, such as --seed or -tp."""
        return dict(self._option_string_actions)

    def table_of(self, words: Sequence[str]) -> FlagTable:
        """Returns the flags of a command line by their long names, without reading their values.

        The last one of several equal flags counts, unless their action is `extend`. Flags of
        plugins, which the parser does not have, are kept under the written name, and their values
        add up: `--plugin a --plugin b`.

        Raises:
            UsageError: A word belongs to no flag.
        """
        actions = self.actions()
        is_on: dict[str, bool] = {}
        values: dict[str, list[str]] = {}
        name = ""
        for word in words:
            form, equals, value = self._declared(word).partition("=")
            action = actions.get(form)
            if action is None and not form.startswith("--"):
                if not values:
                    raise UsageError(f"unexpected argument {word!r}")
                values[name].append(word)
                continue
            is_off = isinstance(action, argparse.BooleanOptionalAction) and form.startswith("--no-")
            name = form.removeprefix("--")
            if action is not None:
                name = long_name(action)
                if not isinstance(action, argparse._ExtendAction):
                    values.pop(name, None)
            is_on[name] = not is_off
            values.setdefault(name, [])
            if equals:
                values[name].append(value)
        table: FlagTable = {}
        for name, texts in values.items():
            table[name] = is_on[name]
            if texts:
                table[name] = texts if len(texts) > 1 else texts[0]
        return table

    def with_long_names(self, table: FlagTable) -> FlagTable:
        """Returns a table of a file, whose names may be other forms, with the long names of flags.

        Raises:
            UsageError: A switch is turned off by its negative form.
        """
        actions = self.actions()
        named: FlagTable = {}
        for name, text in table.items():
            form = f"--{name}".replace("_", "-")
            action = actions.get(form)
            if action is None:
                named[name] = text
                continue
            if isinstance(action, argparse.BooleanOptionalAction) and form.startswith("--no-"):
                if text is False:
                    raise unknown_flag(f"--no-{name}", list(self._forms()))
                text = False if text is True else text
            named[long_name(action)] = text
        return named

    def values_of(self, table: FlagTable) -> dict[str, Any]:
        """Returns the values of flags by name, as attributes of parsed options.

        Flags that the parser does not have are left out.

        Raises:
            UsageError: A value is wrong.
        """
        actions = self.actions()
        values: dict[str, Any] = {}
        for name, text in table.items():
            action = actions.get(f"--{name}")
            if action is not None and not isinstance(action, argparse._HelpAction):
                values[action.dest] = self._value_of(action, name, text)
        return values

    def parse_table(self, table: FlagTable) -> argparse.Namespace:
        """Parses flags by name; the other ones have their defaults.

        Raises:
            UsageError: A value is wrong.
        """
        defaults = {
            action.dest: action.default
            for action in self._actions
            if action.default is not argparse.SUPPRESS
        }
        return argparse.Namespace(**{**defaults, **self.values_of(table)})

    def _value_of(self, action: argparse.Action, name: str, text: bool | str | list[str]) -> object:
        """Returns the value of a flag; raises UsageError for a wrong one."""
        if text in ([], "") and action.nargs == 0:
            text = True
        if isinstance(text, bool) and isinstance(action, argparse.BooleanOptionalAction):
            return text
        if text is False:
            raise unknown_flag(f"--no-{name}", list(self._forms()))
        if text is True and action.nargs == 0:
            return action.const
        texts = [text] if isinstance(text, str) else text
        if isinstance(texts, bool):
            texts = []
        try:
            count = self._match_argument(action, "A" * len(texts))
            if count < len(texts):
                raise unexpected_argument(texts[count])
            return self._get_values(action, texts[:count])
        except argparse.ArgumentError as error:
            self.error(str(error))

    def _declared(self, word: str) -> str:
        """Returns a word with its flag as declared: vLLM's may have underscores, too."""
        form, equals, value = word.partition("=")
        dashed = form.replace("_", "-")
        if form.startswith("--") and dashed in self._option_string_actions:
            return f"{dashed}{equals}{value}"
        return word

    def _check(self, words: Sequence[str], forms: Iterable[str]) -> None:
        valid_forms = set(forms)
        for word in takewhile("--".__ne__, words):
            form = word.partition("=")[0].replace("_", "-")
            if _FLAG.fullmatch(form) and form not in valid_forms:
                raise unknown_flag(form, valid_forms)

    def _forms(self) -> Iterator[str]:
        yield from self._option_string_actions
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._option_string_actions


def long_name(action: argparse.Action) -> str:
    """Returns the first name of a flag that begins with two dashes, without these."""
    forms = [form for form in action.option_strings if form.startswith("--")]
    return (forms or action.option_strings)[0].lstrip("-")


def texts_of(values: Mapping[str, object]) -> FlagTable:
    """Returns values by name, as YAML files have them, as a table of flags."""
    table: FlagTable = {}
    for name, value in values.items():
        if isinstance(value, list):
            table[name] = [str(item) for item in value]
        else:
            table[name] = value if isinstance(value, bool) else str(value)
    return table


def words_of(table: FlagTable) -> list[str]:
    """Returns flags by name as words of a command line."""
    words: list[str] = []
    for name, value in table.items():
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *value]
        elif value.startswith("-"):
            words.append(f"--{name}={value}")
        else:
            words += [f"--{name}", value]
    return words


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Returns a type of argparse for whole numbers from `minimum` to `maximum`."""
    rule = f"must be a whole number of at least {minimum}"
    if maximum is not None:
        rule = f"must be a whole number from {minimum} to {maximum}"
    return _bounded(int, minimum, maximum or math.inf, rule)


def token_count(minimum: int, maximum: int) -> Callable[[str], int]:
    """Returns a type of argparse for tokens from `minimum` to `maximum`, such as 2000 or 2k."""
    rule = f"must be a whole number from {minimum} to {maximum}, such as 2000 or 2k"
    return _bounded(parse_count, minimum, maximum, rule)


def number_of(low: float, high: float, zero: bool = False) -> Callable[[str], float]:
    """Returns a type of argparse for numbers up to `high`.

    The minimum is `low` with `zero`, else `low` + 1e-6.
    """
    if zero:
        return _bounded(float, low, high, f"must be a number from {low:g} to {high:,.0f}")
    rule = f"must be a number greater than {low:g}, at most {high:,.0f}"
    return _bounded(float, low + 1e-6, high, rule)


def duration_of(max_s: float, min_s: float = 0.0) -> Callable[[str], float]:
    """Returns a type of argparse for durations from `min_s` to `max_s` seconds."""
    rule = f"must be a duration from {format_duration(min_s)} to {format_duration(max_s)}"
    return _bounded(parse_duration, min_s, max_s, rule)


def size_of(text: str) -> float:
    """Reads a flag's size in bytes, such as `163840`, `50GB` or `1.5GiB`.

    Raises:
        ArgumentTypeError: The text is not a size.
    """
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, not {text!r}") from None


def as_argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Returns a type of argparse from a function that raises ValueError with a rule."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {error}") from None

    return convert


def _bounded(
    convert: Callable[[str], Number], minimum: float, maximum: float, rule: str
) -> Callable[[str], Number]:
    def read(text: str) -> Number:
        with suppress(ValueError):
            value = convert(text)
            if minimum <= value <= maximum:
                return value
        raise ValueError(rule)

    return as_argument(read)
