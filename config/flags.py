"""The command line: `--name value`, `--name=value`, switches, lists, and flags that are only tolerated."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from config.errors import ConfigError
from config.fields import Setting
from config.kinds import FALSE, TRUE
from config.table import BY_NAME

IGNORED_SWITCHES = frozenset(
    {"enforce-eager", "enable-prefix-caching", "enable-auto-tool-choice"}
    | {"use-vllm-map-event-format"}
    | {"add-dir-header", "alsologtostderr", "logtostderr", "one-output", "skip-headers", "skip-log-headers"}
)
IGNORED_VALUES = frozenset(
    {"mm-processor-kwargs", "ec-transfer-config", "tensor-parallel-size", "tool-call-parser"}
    | {"vmodule", "log-backtrace-at", "log-dir", "log-file", "log-file-max-size", "stderrthreshold"}
)
IGNORED = IGNORED_SWITCHES | IGNORED_VALUES
"""Flags of vLLM and of klog (specification, sections 1.3 and 1.4) that are accepted and change nothing."""

DETAILED = 4
"""klog verbosity from which lines count as debugging."""
_FLAG = re.compile(r"--.*|-h|-v(=?\d+)?", re.DOTALL)


@dataclass(slots=True)
class Flags:
    """What the command line said, not yet read as values."""

    values: dict[str, str | list[str]] = field(default_factory=dict)
    """Setting name to its text; a list for list settings."""
    config: str | None = None
    help: bool = False
    version: bool = False
    warnings: list[str] = field(default_factory=list)


def parse(argv: Sequence[str]) -> Flags:
    """Take the command line apart. Raises ConfigError for unknown flags, missing values and stray words."""
    flags = Flags()
    words = _Words(argv)
    for word in words:
        if not _FLAG.fullmatch(word):
            raise ConfigError(f"unexpected argument {word!r}: settings are given as --name value")
        name, equals, text = word.partition("=")
        _take(flags, words, name, text if equals else None)
    return flags


class _Words(Iterator[str]):
    """The words of a command line, with a look at the next one."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._rest = list(reversed(argv))

    def __next__(self) -> str:
        if not self._rest:
            raise StopIteration
        return self._rest.pop()

    def value(self) -> str | None:
        """The next word, unless it is a flag."""
        return next(self) if self._rest and not _FLAG.fullmatch(self._rest[-1]) else None

    def switch(self) -> str | None:
        """The next word, if it can be the value of a switch."""
        return next(self) if self._rest and self._rest[-1].lower() in TRUE | FALSE else None


def _take(flags: Flags, words: _Words, flag: str, text: str | None) -> None:
    name = flag.lstrip("-").replace("_", "-")
    negated = name.removeprefix("no-")
    if flag in ("-h", "--help"):
        flags.help = True
    elif name == "version" and text is None:
        flags.version = True
    elif flag == "--v" or flag.startswith("-v"):
        _take_verbosity(flags, text or flag.lstrip("-v") or _needed(words, flag))
    elif name == "config":
        flags.config = text if text is not None else _needed(words, flag)
    elif name in BY_NAME:
        flags.values[name] = _value(BY_NAME[name], words, flag, text)
    elif name in IGNORED or negated in IGNORED_SWITCHES:
        _skip(words, name, text)
        flags.warnings.append(f"flag --{name} is accepted and ignored")
    elif negated in BY_NAME and BY_NAME[negated].type == "switch" and text is None:
        flags.values[negated] = "false"
    else:
        raise ConfigError(f"unknown flag {flag}{suggestion(name, '--')}")


def _take_verbosity(flags: Flags, text: str) -> None:
    """klog's ``-v N`` is a log level, unless one is given by name."""
    if not text.isdecimal():
        raise ConfigError(f"flag -v: {text!r} must be a whole number")
    level = int(text[:3])
    word = "debug" if level >= DETAILED else "info" if level > 1 else "warning"
    flags.values.setdefault("log-level", word)


def _value(row: Setting, words: _Words, flag: str, text: str | None) -> str | list[str]:
    if row.type.startswith("list"):
        given = [text] if text is not None else list(iter(words.value, None))
        return [item for item in given if item]
    if text is not None:
        return text
    return words.switch() or "true" if row.type == "switch" else _needed(words, flag)


def _skip(words: _Words, name: str, text: str | None) -> None:
    if text is None:
        words.value() if name in IGNORED_VALUES else words.switch()


def _needed(words: _Words, flag: str) -> str:
    text = words.value()
    if text is None:
        raise ConfigError(f"flag {flag} needs a value")
    return text


def suggestion(name: str, prefix: str = "") -> str:
    """``; did you mean ...?`` when a setting's name is close to `name`, else nothing."""
    close = get_close_matches(name, BY_NAME, n=1, cutoff=0.75)
    return f"; did you mean {prefix}{close[0]}?" if close else ""
