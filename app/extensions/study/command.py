"""`understudy study`: measures fleets, and compares them with a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from config.declaration import COMMAND, UsageError, suggestion
from config.flags import as_command

COMMANDS = ("take", "compare")
USAGE = f"""\
usage: {COMMAND} study take ...      measure a running fleet by its metrics, into a folder
       {COMMAND} study compare ...   compare a study with a simulation of its fleet

{COMMAND} study take --help and {COMMAND} study compare --help list the flags (docs/study.md).
"""


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    name, rest = (argv[0], argv[1:]) if argv else ("", ())
    if name in ("", "--help", "-h"):
        print(USAGE, end="")
        return 0
    if name == "take":
        from app.extensions.study.take import take  # imports gevent

        return take(rest)
    if name == "compare":
        from app.extensions.study.compare import compare  # imports the simulation

        return compare(rest)
    raise UsageError(
        f"study {name}: must be one of {', '.join(COMMANDS)}{suggestion(name, COMMANDS)}"
    )
