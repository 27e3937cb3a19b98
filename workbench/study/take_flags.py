"""Flags of `study take`."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from config.declaration import COMMAND
from config.flags import FlagParser, as_argument, duration_of
from workbench.study.quantities import MAX_UNIX_S

ABOUT = """\
Measure a running fleet by its metrics, and write a folder with its load, its pods, and its
latencies (docs/study.md). Nothing of prompts is read. A DURATION is 90s, 15m, 24h or 2h30m.
"""
MAX_RANGE_S = 366 * 86_400.0


def make_parser() -> FlagParser:
    """Makes the parser. Flags whose help does not name a default are None if absent."""
    flags = FlagParser(prog=f"{COMMAND} study take", description=ABOUT, allow_abbrev=False)
    flags.examples = (
        f"{COMMAND} study take --metrics http://localhost:8000 --for 30s --step 2s --out prod",
    )
    group = flags.add_argument_group("Source, one of")
    add = group.add_argument
    add("--prometheus", metavar="URL", help="a Prometheus server, or one with its HTTP API")
    add("--metrics", nargs="+", metavar="URL", help="pods that are asked at intervals")
    add(
        "--scrapes",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="saved texts of /metrics; a file's time of change is its time, and files in different"
        " folders are of different pods",
    )
    _add_prometheus(flags)
    add = flags.add_argument_group("Time").add_argument
    duration = duration_of(MAX_RANGE_S, 1.0)
    add(
        "--for",
        dest="seconds",
        type=duration,
        default=600.0,
        metavar="DURATION",
        help="time for which pods are asked [10m]",
    )
    add(
        "--step",
        type=duration_of(86_400, 0.1),
        metavar="DURATION",
        help="interval of samples [1m with --prometheus, 15s with --metrics]",
    )
    add(
        "--window",
        type=duration,
        metavar="DURATION",
        help="length of a window, which has one distribution of lengths [15m from 2h on; a tenth of"
        " a shorter time]",
    )
    add = flags.add_argument_group("Fleet and results").add_argument
    add(
        "--serve",
        action="append",
        default=[],
        metavar="COMMAND|FILE",
        help="the command of a pod, as 'vllm serve MODEL ...', or a manifest or script with it;"
        " repeatable, one for each group of pods",
    )
    add("--device", default="", help="accelerator of the pods, such as h100")
    add("--out", required=True, type=Path, metavar="FOLDER", help="folder to write")
    return flags


def _add_prometheus(flags: argparse.ArgumentParser) -> None:
    add = flags.add_argument_group("Prometheus").add_argument
    add(
        "--selector",
        default="",
        metavar="MATCHERS",
        help='labels of the fleet, such as \'namespace="prod",model_name="m"\'',
    )
    duration = duration_of(MAX_RANGE_S, 1.0)
    add(
        "--range",
        dest="range_s",
        type=duration,
        default=86_400.0,
        metavar="DURATION",
        help="length of the range [24h]",
    )
    add(
        "--end",
        type=as_argument(_read_time),
        metavar="TIME",
        help="end of the range, such as 2026-01-31T18:00:00Z [now]",
    )
    add(
        "--group-label",
        default="",
        metavar="LABEL",
        help="label that separates groups of pods; the values prefill and decode are roles",
    )
    add(
        "--bearer-token-file",
        type=Path,
        metavar="FILE",
        help="file with the token of the server",
    )
    add(
        "--basic-auth-file",
        type=Path,
        metavar="FILE",
        help="file with USER:PASSWORD for the server",
    )
    add("--ca-file", type=Path, metavar="FILE", help="certificates to trust, in PEM format")
    add(
        "--timeout",
        type=duration_of(3600, 1.0),
        default=30.0,
        metavar="DURATION",
        help="longest time of a query [30s]",
    )


def _read_time(text: str) -> float:
    """Returns Unix seconds. Raises ValueError for a text that is not a time with a zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a time such as 2026-01-31T18:00:00Z") from None
    if time.tzinfo is None:
        raise ValueError("must have a time zone, such as Z")
    time_s = time.timestamp()
    if not 0 <= time_s <= MAX_UNIX_S:
        raise ValueError(f"must be from 1970 to {datetime.fromtimestamp(MAX_UNIX_S, UTC).year}")
    return time_s
