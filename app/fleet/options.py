"""The flags of `python -m app fleet`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.fleet.routing import COMPARED
from app.load.policies import POLICIES
from app.load.report import check_target
from config import UsageError
from config.flags import Parser, number_of, whole_number
from config.installation import COMMAND, check_installed

ABOUT = """\
Start pods, an indexer and a proxy on this machine, play a workload of shared prefixes, and show the time to
the first token with each way of routing (docs/fleet.md). Settings of the server are flags here, too: the pods
and the indexer get them.
"""
MOST_PODS = 64


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for. One of `concurrency` (requests at once) and `rate` (requests a second) is None."""

    pods: int
    requests: int
    groups: int
    prefix_tokens: int
    concurrency: int | None
    rate: float | None
    policies: tuple[str, ...]
    """Empty is most of them; see `with_policies`."""
    seed: int
    png: Path | None
    json: Path | None
    serve: bool


def read(argv: Sequence[str]) -> tuple[Options, list[str]]:
    """The options, and the flags that are not among them. ConfigError, in one line, for wrong values."""
    given, flags = _parser().parse_beside_settings(argv)
    if given.png is not None and not given.no_png:
        check_installed("fleet", "--png")
    for path in (given.png, given.json):
        check_target(path)
    options = Options(
        pods=given.pods,
        requests=given.requests,
        groups=given.groups,
        prefix_tokens=given.prefix_tokens,
        concurrency=None if given.rate else given.concurrency,
        rate=given.rate,
        policies=tuple(dict.fromkeys(given.policies or ())),
        seed=given.seed,
        png=None if given.no_png else given.png or Path("fleet.png"),
        json=given.json,
        serve=given.serve,
    )
    return options, flags


def with_policies(options: Options, more: Iterable[str]) -> Options:
    """Fills in the policies where none is asked for. UsageError for an unknown one."""
    known = (*POLICIES, *more)
    for name in options.policies:
        if name not in known:
            told = ", ".join(map(repr, known))
            raise UsageError(f"argument --policies: invalid choice: {name!r} (choose from {told})")
    return replace(options, policies=options.policies or (*COMPARED, *more))


def _parser() -> Parser:
    flags = Parser(prog=f"{COMMAND} fleet", description=ABOUT, allow_abbrev=False)
    whole = whole_number(1)
    flags.add_argument("--pods", type=whole_number(1, MOST_PODS), default=4, help="servers to start [4]")
    flags.add_argument("--requests", type=whole, default=200, help="requests to send under each policy [200]")
    flags.add_argument("--groups", type=whole, default=10, help="system prompts that they share [10]")
    flags.add_argument("--prefix-tokens", type=whole, default=2000, help="length of a system prompt [2000]")
    load = flags.add_mutually_exclusive_group()
    load.add_argument("--concurrency", type=whole, default=12, help="requests that run at once [12]")
    load.add_argument(
        "--rate", type=number_of(0, 1e6), help="requests a second instead, however many then run at once"
    )
    flags.add_argument(
        "--policies",
        nargs="+",
        help=f"ways of routing: {', '.join(POLICIES)}, and those of plugins [all but least-requests]",
        metavar="POLICY",
    )
    flags.add_argument(
        "--seed", type=whole_number(0, 2**31), default=1, help="of workload, routing and pods [1]"
    )
    picture = flags.add_mutually_exclusive_group()
    picture.add_argument("--png", type=Path, help="picture to draw [fleet.png, with matplotlib]")
    picture.add_argument("--no-png", action="store_true", help="draw none")
    flags.add_argument("--json", type=Path, help="file for the figures, every TTFT among them")
    flags.add_argument("--serve", action="store_true", help="play nothing: serve until Ctrl-C, tell the URLs")
    return flags
