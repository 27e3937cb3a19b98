"""All benchmarks one after the other, with short rounds:

`python -m benchmarks` takes about four minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import (
    burst,
    dataset,
    footprint,
    kv_hashing,
    kv_index,
    kv_publishing,
    pacing,
    requests,
    scrape,
)
from benchmarks.options import add_c_tools


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    flags.add_argument(
        "--rounds", type=int, default=3, help="rounds of each benchmark, medians are shown"
    )
    add_c_tools(flags)
    options = flags.parse_args(argv)
    rounds = ["--rounds", str(options.rounds)]
    tools = [f"--{name}={path}" for name in ("sseload", "csrv") if (path := getattr(options, name))]
    for command, flags_of_command in (
        (requests, []),
        (burst, tools),
        (pacing, tools),
        (footprint, []),
        (scrape, []),
        (dataset, ["--seconds", "1"]),
        (kv_hashing, []),
        (kv_publishing, []),
        (kv_index, []),
    ):
        command.main([*rounds, *flags_of_command])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
