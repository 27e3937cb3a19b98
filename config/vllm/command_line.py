"""vLLM's `serve` command line, taken apart: what it says in vLLM's words, and our own settings in it."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from config.flags import NOTHING, SettingsParser, add_settings, flags_of, given_to, kind_of, plain_parser
from config.installation import COMMAND
from config.settings import table_of
from config.sources import Flags
from config.vllm.options import Option, groups, options
from config.vllm.words import written_out

MODEL = "model_tag"
"""The model that stands without a name in front."""
OURS = "vllm "
"""Before the names of vLLM's options among the parser's results; settings stand there as they are called."""
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
"""Options of earlier versions, in command lines that are still about: accepted, too."""

Value = str | bool | list[str]


class Line(Struct):
    """One command line."""

    given: dict[str, Value]
    """vLLM's options by name, `model` also when it stood alone; sizes are plain numbers."""
    flags: Flags
    """Our own settings."""


def read(argv: Sequence[str], environ: Mapping[str, str] = NOTHING) -> Line:
    """Take the line apart. ConfigError for what vLLM's parser would refuse, too."""
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


def usage(told: dict[str, str]) -> str:
    """The help, in which each option of vLLM says what it does here; `told` by name, others do nothing."""
    parser = plain_parser(usage=USAGE, description=ABOUT)
    _add_options(parser, told)
    return parser.format_help()


def _add_options(parser: SettingsParser, told: dict[str, str] | None = None) -> None:
    parser.add_argument(MODEL, metavar="MODEL", nargs="?", help="Name of the model that is played.")
    for name, members in groups().items():
        group = parser.add_argument_group(name.capitalize())
        for option, facts in members.items():
            help = (told or {}).get(option, "Accepted; changes nothing.").replace("%", "%%")
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
    """How an option is written, all its forms."""
    facts = options()[name]
    yield f"--{name}"
    yield from facts.also
    if facts.off:
        yield f"--no-{name}"
