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
Start pods, an indexer and a proxy on this machine, play a workload of shared prefixes, and show the
time to the first token with each routing policy (docs/fleet.md). Settings of the server are flags
here, too: the pods and the indexer get them.
"""
MAX_PODS = 64


def read_flags(argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Returns the options (`concurrency` or `rate` is None) and the flags of servers.

    Raises:
        ConfigError: A file cannot be written, or an optional package is missing.
        UsageError: A flag is wrong.
    """
    options, server_flags = _make_parser().parse_beside_settings(argv, settings_type())
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


def _make_parser() -> FlagParser:
    flags = FlagParser(prog=f"{COMMAND} fleet", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    count = whole_number(1)
    add("--pods", type=whole_number(1, MAX_PODS), default=4, help="servers to start [4]")
    add("--requests", type=count, default=200, help="requests to send under each policy [200]")
    add("--groups", type=count, default=10, help="system prompts that the requests share [10]")
    add("--prefix-tokens", type=count, default=2000, help="length of a system prompt [2000]")
    add_pace = flags.add_mutually_exclusive_group().add_argument
    add_pace("--concurrency", type=count, default=12, help="requests that run at once [12]")
    add_pace(
        "--rate",
        type=number_of(0, 1e6),
        help="requests per second, instead of a number of requests at once",
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
        help="seed of workload, routing and pods [1]",
    )
    add_picture = flags.add_mutually_exclusive_group().add_argument
    add_picture(
        "--png", type=Path, help="picture to draw, a PNG or an SVG [fleet.png, with matplotlib]"
    )
    add_picture("--no-png", action="store_true", help="draw no picture")
    add("--json", type=Path, help="file for the figures, including every TTFT")
    add("--serve", action="store_true", help="send no load: serve until Ctrl-C, and print the URLs")
    return flags
