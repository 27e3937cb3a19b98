"""Command line: `understudy run [flags]` checks the settings, then becomes gunicorn with them.

Flags without a command do the same, on all addresses. Without any word and any variable of a
setting, the help is printed. The other commands come from the core and its extensions
(`all_commands`). Exit status: 0; 1 for an invalid setting or file, or a failing server; 2 for a
command line that cannot be parsed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from app.core.built_in import present_extensions
from app.core.extensions import Command
from app.core.server.gunicorn.early_signals import ignore_signals
from app.core.settings import resolve, settings_table, settings_type
from config import VERSION, ConfigError, UsageError
from config.command_line import parse, usage, without_keyword
from config.declaration import COMMAND, suggestion
from config.environment import as_environment
from config.files import limit_files
from config.loader import check_extras
from config.printable import one_line, printable_output
from config.settings import table_of
from config.sources import PREFIX, Flags, Sources, ignore_warning
from config.validation import read as read_setting
from vllm_facts.image import without_empty_start
from vllm_facts.version import playable_version

ROOT = str(Path(__file__).resolve().parents[2])
LOOPBACK = "127.0.0.1"
BROKEN_PIPE = 1
"""Exit status when the reader of stdout has gone; Python's own would be 120, with an error message.
"""

EXAMPLES = f"""\
  {COMMAND} run                                        on 127.0.0.1, port 8000
  {COMMAND} run --port 8001 --max-num-seqs 64 --console
  {COMMAND} serve Qwen/Qwen3-8B --max-model-len 8192   as vLLM, on all addresses
  {COMMAND} simulate --model Qwen/Qwen3-8B --device h100 --rate 5
  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "Hello"}}]}}'
"""


@printable_output()
def main(argv: Sequence[str]) -> int:
    """Returns the exit status.

    Does not return when a server starts: gunicorn replaces this process.
    """
    argv = without_empty_start(argv)
    if argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    elif argv[:1] == ["version"]:
        argv = ["--version"]
    elif not argv and not any(name.startswith(PREFIX) for name in os.environ):
        argv = ["--help"]
    try:
        try:
            command = command_of(argv)
            return command.run(argv[1:]) if command else _start(argv, _read, _help)
        finally:
            sys.stdout.flush()
    except ConfigError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:  # while a command is imported
        print("error: interrupted; nothing was written", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Happens in `--help | head`. The rest of the buffer goes to /dev/null at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _start(
    argv: Sequence[str],
    read: Callable[[Sequence[str]], Flags],
    help: Callable[[Flags], str],
    version: str = f"understudy {VERSION} (vLLM %s)",
) -> int:
    """Starts a server, or prints the help or `version` with the simulated release as `%s`."""
    flags = read(argv)
    if flags.help:
        print(help(flags))
        return 0
    if flags.version:
        print(version % _simulated_release(flags))
        return 0
    limit_files(flags.values)
    # The settings go to gunicorn by the environment; it loads them again, and repeats warnings.
    settings = resolve(flags, os.environ, ignore_warning)
    check_extras(settings)
    variables = as_environment(flags, settings, os.environ)
    for warning in (*flags.warnings, *filter(None, [flags.model_warning])):
        print(f"warning: {warning}", file=sys.stderr)
    if flags.headless:
        from app.core.headless import run

        return run()
    # `-m` imports from the folder first, and a user's folder may have an `app`, too. Paths begin in
    # the user's folder nevertheless: `gunicorn.conf.py` returns to it before it reads the settings.
    os.chdir(ROOT)
    os.environ.update(variables)
    # A signal for a running server must not end its start. The settings are read after it.
    ignore_signals()
    # The new program does not inherit what Python has buffered.
    sys.stdout.flush()
    sys.stderr.flush()
    configuration = os.path.join(ROOT, "gunicorn.conf.py")
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", "-c", configuration, "wsgi:app"])


def _simulated_release(flags: Flags) -> str:
    """Returns the number of vLLM's release, from the setting alone: others may be wrong."""
    row = settings_table().by_name["vllm-version"]
    candidate = Sources(flags, os.environ, ignore_warning).value_of(row)
    name = row.default if candidate is None else read_setting(row, *candidate)
    return playable_version(str(name)).release


def _serve(argv: Sequence[str]) -> int:
    from vllm_facts import help as serve_help  # other commands do not need these 300 options
    from vllm_facts import serve

    # Scripts compare the output of `vllm --version` with numbers, so it is the number alone.
    return _start(
        argv,
        lambda words: serve.settings_of(words, os.environ, settings_type()),
        lambda flags: serve_help.usage(settings_table(), flags.help_keyword),
        version="%s",
    )


def _run(argv: Sequence[str]) -> int:
    def read(words: Sequence[str]) -> Flags:
        flags = _read(words)
        flags.fallbacks["host"] = LOOPBACK
        return flags

    return _start(argv, read, _settings_help)


def all_commands() -> dict[str, Command]:
    """Returns the commands by name: those of the core, then those of the extensions.

    A name of two words, such as "record --proxy", is another way of the command of its first word,
    for command lines that have the second one.
    """
    commands = {
        "run": Command(_run, f"start a server with settings of Understudy, on {LOOPBACK}"),
        "serve": Command(_serve, "start a server with the command line of vLLM"),
    }
    for extension in present_extensions("commands.py"):
        commands |= import_module(f"{extension.__module__}.commands").COMMANDS
    return commands


def listed_commands() -> dict[str, Command]:
    """Returns the commands of one word, which the help lists."""
    return {name: command for name, command in all_commands().items() if " " not in name}


def command_of(argv: Sequence[str]) -> Command | None:
    """Returns the command of a command line; None for one that starts a server.

    A command line of flags starts a server, so no extension is imported for it.
    """
    if not argv or argv[0].startswith("-"):
        return None
    commands = all_commands()
    for word in argv:
        if command := commands.get(f"{argv[0]} {word}"):
            return command
    return commands.get(argv[0])


def _read(argv: Sequence[str]) -> Flags:
    word = argv[0] if argv else "-"
    if word.startswith("-"):
        keyword, words = without_keyword(argv)
        flags = parse(words, os.environ, settings_type())
        flags.help_keyword = keyword
        return flags
    others = suggestion(word, names=[*listed_commands(), "help", "version"]) or ": see --help"
    raise UsageError(f"unknown command {word!r}{others}")


def _settings_help(flags: Flags) -> str:
    """Returns the help of the settings: the usual ones without a keyword."""
    return usage(table_of(flags.kind or settings_type()), flags.help_keyword)


def _help(flags: Flags) -> str:
    """Returns the help: one screen without a keyword."""
    if flags.help_keyword:
        return _settings_help(flags)
    commands = [f"  {name:<12}{command.about}" for name, command in listed_commands().items()]
    return "\n".join(
        [
            f"usage: {COMMAND} COMMAND [--flag value ...]",
            "",
            "A stand-in for vLLM: its HTTP API, pace, metrics and KV cache, without a GPU.",
            "",
            "Commands (each has a --help):",
            *commands,
            "",
            "Examples:",
            EXAMPLES,
            "--help=all lists all settings, --help=WORD those whose names contain WORD.",
            "Flags without a command start a server on all addresses, as run --host 0.0.0.0 does.",
        ]
    )
