"""Flags that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(name: str, about: str | None, rounds: int = 3) -> argparse.ArgumentParser:
    """A command's parser with --rounds."""
    command_parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    command_parser.add_argument(
        "--rounds", type=int, default=rounds, help="interleaved rounds, medians are shown"
    )
    return command_parser


def add_other(to: argparse.ArgumentParser) -> None:
    """--other: a second Understudy, to compare two commits in one run."""
    to.add_argument(
        "--other", type=Path, help="another checkout of Understudy, measured in the same rounds"
    )


def add_c_tools(to: argparse.ArgumentParser) -> None:
    """--sseload and --csrv: compiled tools from elsewhere, used when they are given."""
    to.add_argument(
        "--sseload", type=Path, help="a load client in C, measures each server once more"
    )
    to.add_argument("--csrv", type=Path, help="a pacing server in C, a further reference")


def counts(text: str) -> list[int]:
    """ "100,1000" as numbers, for `type=`."""
    return [int(part) for part in text.split(",")]
