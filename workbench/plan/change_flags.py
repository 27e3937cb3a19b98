"""Flags of `plan` for changes of a measured fleet, which have no SLO."""

from __future__ import annotations

from pathlib import Path

from config.declaration import UsageError
from config.flags import AddArgument, FlagTable, number_of, whole_number

STUDY = "study"
WHAT_IF = "what-if"
SLO_FLAGS = ("slo", "goodput", "over-time")
"""Flags that ask for a fleet within an SLO; a study is its load."""
CHANGE_FLAGS = ("max-rise", "max-requests", "html")
"""Flags that have no meaning beside an SLO."""
PLAN_FLAGS = frozenset((STUDY, WHAT_IF, *CHANGE_FLAGS, "accept-study", "json"))
"""Flags of a comparison of changes. Other flags of `plan` describe the engine, as in `simulate`."""
DEFAULT_RISE = 0.1
MAX_REQUESTS = 200_000


def compares_changes(flags: FlagTable) -> bool:
    """Returns whether `plan` compares changes of a measured fleet.

    Raises:
        UsageError: The flags contradict each other.
    """
    for name in SLO_FLAGS:
        if name in flags and WHAT_IF in flags:
            raise UsageError(f"--{name} cannot be combined with --{WHAT_IF}")
    if WHAT_IF in flags or (STUDY in flags and flags.keys().isdisjoint(SLO_FLAGS)):
        return True
    for name in CHANGE_FLAGS:
        if name in flags:
            raise UsageError(f"--{name} requires --{STUDY}, and no SLO")
    return False


def add_change_flags(add: AddArgument) -> None:
    """Adds the flags to a parser, or to a group of its flags."""
    add(
        f"--{WHAT_IF}",
        nargs="+",
        action="extend",
        metavar="CHANGE",
        help="changes to simulate, each beside today's fleet: 'rate x2', rate+50%%, rate=10,"
        " pods=3, pods-1, prefill-share=0.25, prefix-caching=off, or a flag of simulate that"
        " describes the fleet, such as device=h200; several in quotes apply together",
    )
    add(
        "--max-rise",
        type=number_of(0, 10, zero=True),
        default=DEFAULT_RISE,
        metavar="SHARE",
        help="largest rise of the mean TTFT, TPOT and E2E with the cheapest fleet; a rise within"
        f" the error does not count [{DEFAULT_RISE:g}]",
    )
    add(
        "--max-requests",
        type=whole_number(100),
        default=MAX_REQUESTS,
        metavar="N",
        help="most requests to simulate; of larger fleets, a part of the pods gets its part of the"
        f" load [{MAX_REQUESTS:,}]",
    )
    add(
        "--html",
        type=Path,
        metavar="FILE.html",
        help="write a report that needs no network",
    )
