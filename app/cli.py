"""The commands: `python -m app [flags]` checks the settings, then becomes gunicorn with the same settings.

`python -m app serve MODEL [options]` does so with vLLM's command line (docs/serve.md). `python -m app
dataset [flags]` makes a dataset instead (docs/datasets.md); `python -m app fleet [flags]` starts several
servers and shows what routing does (docs/fleet.md); `python -m app simulate [flags]` says what an engine
would do with a load; `record` and `calibrate` make a profile of a real one (docs/fidelity.md);
`record --proxy` keeps whole exchanges, `drift` compares them with a live server (docs/recording.md);
`python -m app script` checks and tries scripted replies (docs/scripts.md); `python -m app generate` runs a
real model (docs/llm.md), and `rehearse`, a benchmark, shows it beside its simulation; `python -m app plugins`
tells which plugins there are (docs/plugins.md), `completion` helps shells.

Exit status: 0; 1 when a setting, a file or a server is not what it should be; 2 when the words of the command
line cannot be understood.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from config import VERSION, ConfigError, Settings, UsageError
from config.flags import parse, usage
from config.installation import COMMAND
from config.loader import check_extras, resolve
from config.settings import table_of
from config.sources import Flags, as_environment
from config.validation import suggestion

if TYPE_CHECKING:
    from app.fleet.routing import PolicyMaker
    from app.plugins.command import PluggedCosts
    from config.profile import Profile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BROKEN_PIPE = 1
"""Exit status when the reader of our output has gone; Python's own would be 120 and a complaint."""


def main(argv: Sequence[str]) -> int:
    """Exit status, or no return: a server that starts takes this process over."""
    if argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    elif argv[:1] == ["version"]:
        argv = ["--version"]
    command = COMMANDS.get(argv[0]) if argv else None
    try:
        try:
            return command.run(argv[1:]) if command else _start(argv, _read, _help)
        finally:
            sys.stdout.flush()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:
        # As `--help | head` does. What is left in the buffer goes nowhere when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _start(argv: Sequence[str], read: Callable[[Sequence[str]], Flags], help: Callable[[Flags], str]) -> int:
    flags = read(argv)
    if flags.help or flags.version:
        print(help(flags) if flags.help else f"understudy {VERSION}")
        return 0
    variables = _checked(flags)
    for warning in flags.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    _become_gunicorn(variables)
    return 0


def _serve(argv: Sequence[str]) -> int:
    # 300 options that other starts do without.
    from config.vllm import command_line, meanings

    return _start(
        argv,
        lambda words: meanings.settings_of(command_line.read(words, os.environ)),
        lambda flags: command_line.usage(meanings.told()),
    )


def _make_dataset(argv: Sequence[str]) -> int:
    # Not imported by a start of the server, which needs none of it.
    from app.dataset import command
    from app.factory import tokenizer_of

    return command.run(argv, tokenizer_of)


def _start_fleet(argv: Sequence[str]) -> int:
    from app.factory import tokenizer_of
    from app.fleet import command

    return command.run(argv, tokenizer_of, _plugged_policies)


def _plugged_policies(settings: Settings) -> Mapping[str, PolicyMaker]:
    if not settings.PLUGINS:
        return {}
    from app.plugins.registry import registry_of  # and pluggy

    return registry_of(settings).policies()


def _calibrate(argv: Sequence[str]) -> int:
    from app.fidelity import calibrate

    return calibrate.run(argv)


def _record(argv: Sequence[str]) -> int:
    if "--proxy" in argv:
        from app.recording import command

        return command.run(argv)
    from app.fidelity import record

    return record.run(argv)


def _drift(argv: Sequence[str]) -> int:
    from app.recording import drift

    return drift.run(argv)


def _rehearse(argv: Sequence[str]) -> int:
    try:
        command = import_module("benchmarks.rehearse.command")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("benchmarks"):
            raise
        asked = "--help" in argv or "-h" in argv
        told = "rehearse is a benchmark, which a clone of the repository has (docs/fidelity.md)"
        print(told if asked else f"error: {told}", file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 1
    status: int = command.run(argv)
    return status


def _simulate(argv: Sequence[str]) -> int:
    from app.fidelity import simulate

    return simulate.run(argv, _plugged_costs)


def _plugged_costs(settings: Settings, profile: Profile) -> tuple[str, PluggedCosts] | None:
    from app.plugins.command import plugged_costs  # and pluggy

    return plugged_costs(settings, profile)


def _plugins(argv: Sequence[str]) -> int:
    if "--help" in argv or "-h" in argv:  # which is told without pluggy, too
        print(f"usage: {COMMAND} plugins [--plugin NAME] [--setting value ...]\n")
        print("Tell which plugins a server with these settings has, and what they can do (docs/plugins.md).")
        return 0
    from app.plugins import command

    return command.run(argv)


def _script(argv: Sequence[str]) -> int:
    if argv[:1] == ["from-recording"]:
        from app.recording import to_script

        return to_script.run(argv[1:])
    from app.api.script import messages_of
    from app.script import command

    return command.run(argv, messages_of)


def _generate(argv: Sequence[str]) -> int:
    from app.llm import command

    return command.run(argv)


def _completion(argv: Sequence[str]) -> int:
    from app import completion

    return completion.run(argv, COMMANDS, [f"--{row.name}" for row in table_of(Settings).rows])


class Command(NamedTuple):
    """What runs with the words behind its name, and what it is for."""

    run: Callable[[Sequence[str]], int]
    about: str


COMMANDS: Mapping[str, Command] = {
    "serve": Command(_serve, "start a server with vLLM's own command line"),
    "simulate": Command(_simulate, "say what an engine, or a fleet, would do with a load"),
    "fleet": Command(_start_fleet, "start several servers, and show what routing does"),
    "script": Command(_script, "check and try scripted replies, or make a script of a recording"),
    "record": Command(_record, "measure a real server, or keep its exchanges (--proxy)"),
    "drift": Command(_drift, "compare a recording with a live server"),
    "calibrate": Command(_calibrate, "fit a profile to what was recorded of a real server"),
    "rehearse": Command(_rehearse, "run a real engine beside its simulation"),
    "dataset": Command(_make_dataset, "make a dataset of recorded conversations"),
    "generate": Command(_generate, "let a real model write a reply, or chat with it"),
    "plugins": Command(_plugins, "tell which plugins there are, their hooks and settings"),
    "completion": Command(_completion, "print what makes bash, zsh or fish complete these words"),
}
"""By the first word of the command line; a line that begins with a flag starts a server."""


def _read(argv: Sequence[str]) -> Flags:
    word = argv[0] if argv else "-"
    if not word.startswith("-"):
        others = suggestion(word, names=[*COMMANDS, "help", "version"]) or ": see --help"
        raise UsageError(f"unknown command {word!r}{others}")
    return parse(argv, os.environ)


def _help(flags: Flags) -> str:
    commands = [f"  {name:<12}{command.about}" for name, command in COMMANDS.items()]
    head = ["Commands (each has a --help; without one a server starts, with the settings below):", *commands]
    return "\n".join([*head, "", usage(table_of(flags.kind or Settings))])


def _checked(flags: Flags) -> dict[str, str]:
    """The environment that hands the settings over; gunicorn's own load repeats the warnings of this one."""
    settings = resolve(flags, os.environ, warn=lambda text: None)
    check_extras(settings)
    return as_environment(flags, settings, os.environ)


def _become_gunicorn(variables: dict[str, str]) -> None:
    os.chdir(ROOT)
    os.environ.update(variables)
    sys.stdout.flush()
    sys.stderr.flush()
    configuration = os.path.join(ROOT, "gunicorn.conf.py")
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", "-c", configuration, "wsgi:app"])
