"""`python -m app [flags]`: check the settings, then become gunicorn with the same settings.

`python -m app dataset [flags]` makes a dataset instead (docs/datasets.md); `python -m app fleet [flags]`
starts several servers and shows what routing does (docs/fleet.md).
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from config import VERSION, ConfigError
from config.environment import environment
from config.flags import Flags, parse
from config.loader import resolve
from config.usage import usage

ROOT = Path(__file__).parent.parent


def main(argv: Sequence[str]) -> int:
    """Exit status, or no return: a server that starts takes this process over."""
    if argv[:1] == ["dataset"]:
        return _make_dataset(argv[1:])
    if argv[:1] == ["fleet"]:
        return _start_fleet(argv[1:])
    try:
        flags = parse(argv)
        if flags.help or flags.version:
            print(usage() if flags.help else f"understudy {VERSION}")
            return 0
        variables = _checked(flags)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for warning in flags.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    _become_gunicorn(variables)
    return 0


def _make_dataset(argv: Sequence[str]) -> int:
    # Not imported by a start of the server, which needs none of it.
    from app.dataset import command
    from app.factory import tokenizer_of

    return command.run(argv, tokenizer_of)


def _start_fleet(argv: Sequence[str]) -> int:
    from app.factory import tokenizer_of
    from app.fleet import command

    return command.run(argv, tokenizer_of)


def _checked(flags: Flags) -> dict[str, str]:
    """The environment that hands the settings over; gunicorn's own load repeats the warnings of this one."""
    settings = resolve(flags, os.environ, warn=lambda text: None)
    return environment(flags, settings, os.environ)


def _become_gunicorn(variables: dict[str, str]) -> None:
    os.chdir(ROOT)
    os.environ.update(variables)
    sys.stdout.flush()
    sys.stderr.flush()
    configuration = str(ROOT / "gunicorn.conf.py")
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", "-c", configuration, "wsgi:app"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
