"""`understudy plan`: the cheapest fleet for an SLO, or changes of a measured fleet."""

from __future__ import annotations

from collections.abc import Sequence

from config.flags import as_command
from workbench.plan import command as slo_command
from workbench.plan.change_flags import compares_changes
from workbench.plan.plan_flags import make_parser
from workbench.study import decide_command

HELP_FLAGS = ("--help", "-h")


@as_command()
def run(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser()
    if not set(argv).isdisjoint(HELP_FLAGS):
        print(parser.format_help(), end="")
        return 0
    if compares_changes(parser.table_of(argv)):
        return decide_command.run(argv)
    return slo_command.run(argv)
