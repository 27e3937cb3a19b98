"""`understudy study`: measures fleets, compares them with a simulation, and replays their load."""

from __future__ import annotations

from collections.abc import Sequence

from config.declaration import COMMAND, UsageError, suggestion
from config.flags import as_command

COMMANDS = ("take", "compare", "replay")
USAGE = f"""\
usage: {COMMAND} study take ...      measure a running fleet by its metrics, into a folder
       {COMMAND} study compare ...   compare a study with a simulation of its fleet
       {COMMAND} study replay ...    send the load of a study to live servers

{COMMAND} study take --help, {COMMAND} study compare --help, and {COMMAND} study replay --help list
the flags (docs/study.md). {COMMAND} plan --study FOLDER --what-if CHANGE answers what a change of
the fleet would bring (docs/decide.md).
"""


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    name, rest = (argv[0], argv[1:]) if argv else ("", ())
    if name in ("", "--help", "-h"):
        print(USAGE, end="")
        return 0
    if name == "take":
        from workbench.study.take import take  # imports gevent

        return take(rest)
    if name == "compare":
        from workbench.study.compare_command import compare  # imports the simulation

        return compare(rest)
    if name == "replay":
        from workbench.study.replay import replay  # imports gevent

        return replay(rest)
    raise UsageError(
        f"study {name}: must be one of {', '.join(COMMANDS)}{suggestion(name, COMMANDS)}"
    )
