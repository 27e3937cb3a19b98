"""Flags of the other commands: an argparse parser, and the kinds of their values."""

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from itertools import takewhile
from typing import Any, NoReturn, ParamSpec, TypeVar

from config.command_line import kind_of, setting_flags, unknown_flag
from config.declaration import ConfigError, UsageError
from config.durations import format_duration, parse_duration
from config.settings import Settings, table_of

_FLAG = re.compile(r"--[\w-]+", re.ASCII)
_SIZE = re.compile(r"(\d{1,15}(?:\.\d*)?|\.\d+)(?:(?:([kKMGT])(i?))?B)?", re.ASCII)

P = ParamSpec("P")
T = TypeVar("T")


def as_command(*errors: type[Exception]) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Decorates a function that returns an exit status: one line for ConfigError, `errors`,
    OSError, Ctrl-C.

    A closed standard output is left to the caller.
    """

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
            except BrokenPipeError:
                raise
            except OSError as error:
                print(
                    f"error: {error.filename or 'failed'}: {error.strerror or error}",
                    file=sys.stderr,
                )
            return 1

        return status

    return decorate


class FlagParser(argparse.ArgumentParser):
    """Raises UsageError for a wrong command line; reports an unknown flag, with the nearest name,
    first.
    """

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._check(args or (), self._names())
        return super().parse_args(args, namespace)

    def parse_beside_settings(
        self, words: Sequence[str], plugins_only: bool = False
    ) -> tuple[argparse.Namespace, list[str]]:
        """Splits words into flags of the command and flags of settings.

        UsageError for other flags.
        """
        table = table_of(kind_of(words, {}))
        others = {*Settings.__struct_fields__} - {"plugins"} if plugins_only else {""}
        names = {name for name, row in table.by_name.items() if row.group not in others}
        flags = (flag for flag in setting_flags(table) if not plugins_only or flag.name in names)
        self._check(words, [*self._names(), *(form for flag in flags for form in flag.forms)])
        return self.parse_known_args(words)

    def _check(self, words: Sequence[str], names: Iterable[str]) -> None:
        known = set(names)
        for word in takewhile("--".__ne__, words):
            form = word.partition("=")[0].replace("_", "-")
            if _FLAG.fullmatch(form) and form not in known:
                raise unknown_flag(form, known)

    def _names(self) -> Iterator[str]:
        yield from self._option_string_actions
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._option_string_actions


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a type of argparse for whole numbers from `least` to `most`."""
    wanted = f"from {least} on" if most is None else f"from {least} to {most}"
    return _bounded(
        int, lambda it: least <= it <= (most or math.inf), f"must be a whole number {wanted}"
    )


def number_of(low: float, high: float, zero: bool = False) -> Callable[[str], float]:
    """Returns a type of argparse for numbers from `low` + 1e-6 (with `zero`, from `low`) up to
    `high`.
    """
    wanted = f"from {low:g} to" if zero else f"above {low:g}, at most"
    rule, least = f"must be a number {wanted} {high:,.0f}", low if zero else low + 1e-6
    return _bounded(float, lambda it: least <= it <= high, rule)


def duration_of(most_s: float, least_s: float = 0.0) -> Callable[[str], float]:
    rule = f"must be a duration from {format_duration(least_s)} to {format_duration(most_s)}"
    return _bounded(parse_duration, lambda it: least_s <= it <= most_s, rule)


def size_of(text: str) -> float:
    """Reads bytes, such as `163840`, `50GB` or `1.5GiB`; of a flag. Raises ArgumentTypeError."""
    match = _SIZE.fullmatch(text)
    power = " KMGT".index((match[2] or " ").upper()) if match else 0
    size = float(match[1]) * (1024 if match[3] else 1000) ** power if match else 0
    if not 0 < size < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a size above 0, such as 163840, 50GB or 1.5GiB"
        )
    return size


def _bounded(
    convert: Callable[[str], T], valid: Callable[[T], bool], rule: str
) -> Callable[[str], T]:
    def read(text: str) -> T:
        with suppress(ValueError):
            if valid(value := convert(text)):
                return value
        raise ValueError(rule)

    return as_argument(read)


def as_argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Returns a type of argparse from a function that raises ValueError with a rule."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {error}") from None

    return convert
