"""Command line: `python -m app [flags]` checks the settings, then becomes gunicorn with the same
settings.

COMMANDS has the other commands. Exit status: 0; 1 for an invalid setting or file, or a failing
server; 2 for a command line that cannot be parsed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from config import VERSION, VLLM_VERSION, ConfigError, Settings, UsageError
from config.command_line import parse, usage
from config.declaration import COMMAND, suggestion
from config.loader import check_extras, resolve
from config.settings import table_of
from config.sources import Flags, as_environment

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BROKEN_PIPE = 1
"""Exit status when the reader of stdout has gone; Python's own would be 120, with an error message.
"""


def main(argv: Sequence[str]) -> int:
    """Returns the exit status.

    Does not return when a server starts: gunicorn replaces this process.
    """
    argv = without_empty_start(argv)
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
    except KeyboardInterrupt:  # while a command is imported
        print("error: interrupted; nothing was written", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Happens in `--help | head`. The rest of the buffer goes to /dev/null at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def without_empty_start(argv: Sequence[str]) -> list[str]:
    """Returns the words from the first that is not empty: templates may put empty words first."""
    words = list(argv)
    while words and not words[0]:
        del words[0]
    return words


def _start(
    argv: Sequence[str],
    read: Callable[[Sequence[str]], Flags],
    help: Callable[[Flags], str],
    version: str = f"understudy {VERSION} (vLLM {VLLM_VERSION})",
) -> int:
    flags = read(argv)
    if flags.help:
        print(help(flags))
        return 0
    if flags.version:
        print(version)
        return 0
    # The settings go to gunicorn by the environment; it loads them again, and repeats warnings.
    settings = resolve(flags, os.environ, warn=lambda text: None)
    check_extras(settings)
    variables = as_environment(flags, settings, os.environ)
    for warning in flags.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if flags.headless:
        return int(_late("app.wiring.headless")())
    os.chdir(ROOT)
    os.environ.update(variables)
    sys.stdout.flush()
    sys.stderr.flush()
    configuration = os.path.join(ROOT, "gunicorn.conf.py")
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", "-c", configuration, "wsgi:app"])


def _serve(argv: Sequence[str]) -> int:
    from config.vllm import serve  # other commands do not need these 300 options

    # Scripts compare the output of `vllm --version` with numbers, so it is the number alone.
    return _start(
        argv,
        lambda words: serve.settings_of(words, os.environ),
        lambda flags: serve.usage(),
        version=VLLM_VERSION,
    )


def _late(module: str, *given: object, name: str = "run") -> Callable[..., Any]:
    """Returns a function of a module that its first call imports; `given` are its last arguments."""
    return lambda *first: getattr(import_module(module), name)(*first, *given)


def _record(argv: Sequence[str]) -> int:
    module = "app.serving.recording.proxy" if "--proxy" in argv else "app.lab.fidelity.record"
    return int(_late(module)(argv))


def _plugins(argv: Sequence[str]) -> int:
    if not {"--help", "-h"} & {*argv}:
        return int(_late("app.plugins.registry")(argv))
    print(
        f"usage: {COMMAND} plugins [--plugin NAME] [--setting value ...]\n"
    )  # works without pluggy, too
    print(
        "Tell which plugins a server with these settings has, and what they can do (docs/plugins.md)."
    )
    return 0


def _script(argv: Sequence[str]) -> int:
    if argv[:1] == ["from-recording"]:
        return int(_late("app.serving.recording.to_script")(argv[1:]))
    messages_of = _late("app.serving.api.script", name="messages_of")
    return int(_late("app.serving.scripts.command", messages_of)(argv))


def _plugged(name: str, without: object) -> Callable[..., Any]:
    """Returns a function of the plugins' registry (imports pluggy); its result `without` plugins is
    given.
    """
    found = _late("app.plugins.registry", name=name)
    return lambda settings, *given: found(settings, *given) if settings.PLUGINS else without


def _completion(argv: Sequence[str]) -> int:
    flags = [f"--{row.name}" for row in table_of(Settings).rows]
    commands = {name: it.run for name, it in COMMANDS.items()}
    return int(_late("app.wiring.completion", commands, flags)(argv))


class Command(NamedTuple):
    run: Callable[[Sequence[str]], int]
    about: str


TOKENIZER_OF = _late("app.wiring.factory", name="tokenizer_of")
COSTS, AUTOSCALERS = _plugged("plugged_costs", None), _plugged("plugged_autoscalers", {})
SIMULATE, DATASET = "app.lab.fidelity.simulate", "app.engine.dataset.command"
COMMANDS: Mapping[str, Command] = {
    "serve": Command(_serve, "start a server with vLLM's own command line"),
    "init": Command(
        _late("app.wiring.init"), "write a compose file, a script, tests and a CI job to begin with"
    ),
    "simulate": Command(
        _late(SIMULATE, COSTS, AUTOSCALERS), "say what an engine, or a fleet, would do with a load"
    ),
    "plan": Command(
        _late("app.lab.plan.command", COSTS),
        "find the cheapest fleet that meets an SLO under a load",
    ),
    "fleet": Command(
        _late("app.lab.fleet.command", TOKENIZER_OF, _plugged("plugged_policies", {})),
        "start several servers, and show what routing does",
    ),
    "script": Command(_script, "check and try scripted replies, or make a script of a recording"),
    "record": Command(_record, "measure a real server, or keep its exchanges (--proxy)"),
    "drift": Command(
        _late("app.serving.recording.drift"), "compare a recording with a live server"
    ),
    "calibrate": Command(
        _late("app.lab.fidelity.calibrate"), "fit a profile to what was recorded of a real server"
    ),
    "dataset": Command(_late(DATASET, TOKENIZER_OF), "make a dataset of recorded conversations"),
    "generate": Command(
        _late("app.llm.command"), "let a real model write a reply, or chat with it"
    ),
    "plugins": Command(_plugins, "tell which plugins there are, their hooks and settings"),
    "completion": Command(_completion, "print what makes bash, zsh or fish complete these words"),
}
"""Commands by the first argument; arguments that begin with a flag start a server."""


def _read(argv: Sequence[str]) -> Flags:
    word = argv[0] if argv else "-"
    if word.startswith("-"):
        return parse(argv, os.environ)
    others = suggestion(word, names=[*COMMANDS, "help", "version"]) or ": see --help"
    raise UsageError(f"unknown command {word!r}{others}")


def _help(flags: Flags) -> str:
    head = "Commands (each has a --help; without one a server starts, with the settings below):"
    commands = (f"  {name:<12}{command.about}" for name, command in COMMANDS.items())
    return "\n".join([head, *commands, "", usage(table_of(flags.kind or Settings))])
