"""Flags of the command `fleet`."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from app.core.settings import settings_type
from app.extensions.lab.load.output_files import check_output_paths, check_picture_path
from app.extensions.lab.load.policies import POLICIES
from config.declaration import COMMAND, check_installed
from config.flags import FlagParser, number_of, whole_number

ABOUT = """\
Start pods, an indexer and a proxy on this machine, send a workload of shared prefixes, and print
the time to first token with each routing policy (docs/fleet.md). Settings of the server are flags,
too, and apply to the pods and the indexer.
"""
MAX_PODS = 64


def read_flags(argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Returns the options (`concurrency` or `rate` is None) and the flags of servers.

    Raises:
        ConfigError: A file cannot be written, or an optional package is missing.
        UsageError: A flag is wrong.
    """
    options, server_flags = make_parser().parse_beside_settings(argv, settings_type())
    if options.png is not None:
        check_installed("fleet", "--png")
    check_output_paths([options.json, options.png])
    check_picture_path(options.png)
    if options.rate:
        options.concurrency = None
    if options.no_png:
        options.png = None
    elif options.png is None:
        options.png = Path("fleet.png")
    return options, server_flags


def make_parser() -> FlagParser:
    """Makes the parser."""
    flags = FlagParser(prog=f"{COMMAND} fleet", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    count = whole_number(1)
    add(
        "--pods",
        type=whole_number(1, MAX_PODS),
        default=4,
        metavar="N",
        help="servers to start [4]",
    )
    add(
        "--requests",
        type=count,
        default=200,
        metavar="N",
        help="requests to send with each policy [200]",
    )
    add(
        "--groups",
        type=count,
        default=10,
        metavar="N",
        help="system prompts that requests share [10]",
    )
    add(
        "--prefix-tokens",
        type=count,
        default=2000,
        metavar="N",
        help="tokens of a system prompt [2000]",
    )
    add_pace = flags.add_mutually_exclusive_group().add_argument
    add_pace(
        "--concurrency",
        type=count,
        default=12,
        metavar="N",
        help="requests that run at the same time [12]",
    )
    add_pace(
        "--rate",
        type=number_of(0, 1e6),
        help="requests per second at random intervals, instead of --concurrency",
    )
    add(
        "--policies",
        nargs="+",
        default=(),
        metavar="POLICY",
        help=f"routing policies: {', '.join(POLICIES)}, and those of plugins"
        " [all but least-requests]",
    )
    add(
        "--seed",
        type=whole_number(0, 2**31),
        default=1,
        metavar="N",
        help="seed of workload, routing and pods [1]",
    )
    add_picture = flags.add_mutually_exclusive_group().add_argument
    add_picture(
        "--png",
        type=Path,
        metavar="FILE.png|FILE.svg",
        help="picture to draw [fleet.png, with matplotlib]",
    )
    add_picture("--no-png", action="store_true", help="do not draw a picture")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the figures as JSON, with the TTFT of each request",
    )
    add("--serve", action="store_true", help="send no load; print the URLs and serve until Ctrl-C")
    return flags
