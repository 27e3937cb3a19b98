"""Flags of the command `fleet`."""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from app.core.settings import settings_type
from app.shared.http_client import Target
from config import ConfigError, UsageError
from config.declaration import COMMAND, check_installed
from config.flags import FlagParser, number_of, whole_number
from workbench.load.output_files import check_output_paths, check_picture_path
from workbench.load.policies import POLICIES

ABOUT = """\
Start pods, an indexer and a proxy on this machine, send a workload of shared prefixes, and print
the time to first token with each routing policy (docs/fleet.md). Settings of the server are flags,
too, and apply to the pods and the indexer.
"""
MAX_PODS = 64
FILE_FLAGS = (
    "--pods",
    "--requests",
    "--groups",
    "--prefix-tokens",
    "--concurrency",
    "--rate",
    "--serve",
)
"""Flags that a drill replaces by fields of its file."""
DRILL_OPTIONS = ("router", "router_url", "router_retries", "pod_ports", "same_as")
"""Options that have an effect on a drill only."""


def read_flags(argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Returns the options (`concurrency` or `rate` is None) and the flags of servers.

    Raises:
        ConfigError: A file cannot be written, or an optional package is missing.
        UsageError: A flag is wrong.
    """
    options, server_flags = make_parser().parse_beside_settings(argv, settings_type())
    _check_drill_flags(options, argv)
    if options.png is not None:
        check_installed("fleet", "--png")
    check_output_paths([options.json, options.png])
    check_picture_path(options.png)
    if options.rate:
        options.concurrency = None
    if options.no_png:
        options.png = None
    elif options.png is None:
        options.png = Path("fleet.png" if options.drill is None else "drill.png")
    return options, server_flags


def make_parser() -> FlagParser:
    """Makes the parser."""
    flags = FlagParser(prog=f"{COMMAND} fleet", description=ABOUT, allow_abbrev=False)
    flags.examples = (f"{COMMAND} fleet --pods 2 --requests 40 --no-png",)
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
        help="seed of workload, routing, and pods [1]",
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
    _add_drill_flags(flags)
    add("--serve", action="store_true", help="send no load; print the URLs and serve until Ctrl-C")
    return flags


def _add_drill_flags(flags: FlagParser) -> None:
    add = flags.add_argument
    add(
        "--drill",
        type=Path,
        metavar="FILE.yaml",
        help="run the failures in this file, and score the router (docs/drills.md)",
    )
    add_router = flags.add_mutually_exclusive_group().add_argument
    add_router(
        "--router",
        metavar="COMMAND",
        help="command that starts the router of a drill, with {port} and {pods} [a "
        "built-in policy]",
    )
    add_router(
        "--router-url",
        type=_router_target,
        metavar="URL",
        help="URL of a running router whose pods use --pod-ports",
    )
    add(
        "--router-retries",
        metavar="URL#COUNTER",
        help="counter of retries in the router's metrics, such as"
        " http://127.0.0.1:{port2}/metrics#vllm_router_retries_total",
    )
    add(
        "--pod-ports",
        type=whole_number(1, 65535),
        nargs="+",
        default=(),
        metavar="PORT",
        help="ports of the pods of a drill [free ports]",
    )
    add(
        "--same-as",
        type=Path,
        metavar="FILE.json",
        help="exit with status 1 unless a drill has the same figures as this --json file "
        "of an earlier drill",
    )


def _router_target(text: str) -> Target:
    try:
        return Target.from_url(text)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from None


def _check_drill_flags(options: Namespace, argv: Sequence[str]) -> None:
    """Raises UsageError for flags that have no effect, or contradict each other."""
    forms = {word.partition("=")[0] for word in argv}
    if options.drill is None:
        for name in DRILL_OPTIONS:
            if getattr(options, name):
                raise UsageError(f"argument --{name.replace('_', '-')}: requires --drill")
        return
    for flag in FILE_FLAGS:
        if flag in forms:
            raise UsageError(f"argument {flag}: cannot be used with --drill")
    options.seed_given = options.seed if "--seed" in forms else None
    if options.router is None and options.router_url is None:
        _check_own_router(options)
    else:
        _check_other_router(options)
    duplicates = [port for port in options.pod_ports if options.pod_ports.count(port) > 1]
    if duplicates:
        raise UsageError(f"argument --pod-ports: {duplicates[0]} is specified twice")


def _check_own_router(options: Namespace) -> None:
    if len(options.policies) > 1:
        raise UsageError("argument --policies: a drill can use only one policy")
    if options.router_retries is not None:
        raise UsageError("argument --router-retries: requires --router or --router-url")


def _check_other_router(options: Namespace) -> None:
    if options.policies:
        raise UsageError("argument --policies: not allowed with a router")
    if options.router_url is not None and not options.pod_ports:
        raise UsageError(
            "argument --router-url: requires --pod-ports, the ports that the router uses"
        )
    if options.router_retries is not None and "#" not in options.router_retries:
        raise UsageError(
            "argument --router-retries: must have the form http://host/metrics#counter"
        )
