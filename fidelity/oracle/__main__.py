"""The oracle: records a real vLLM's answers to the catalogue, and compares ours with them.

python -m fidelity.oracle run VERSION: does the next three
python -m fidelity.oracle install VERSION: installs vLLM for CPUs into .oracle/VERSION
python -m fidelity.oracle record VERSION: starts it in each configuration and stores its answers
python -m fidelity.oracle compare VERSION: starts Understudy likewise and prints agreement by area
python -m fidelity.oracle diff FROM TO: prints what differs between the answers of two versions
python -m fidelity.oracle keep VERSION NEWER: keeps the answers that differ in the repository
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from fidelity.oracle.agreement import compare
from fidelity.oracle.configurations import CONFIGURATIONS
from fidelity.oracle.install import install
from fidelity.oracle.keeping import keep
from fidelity.oracle.recording import record
from fidelity.oracle.releases import compare_versions

LOWER_PRIORITY = 10
"""Steps of niceness: a real vLLM takes all cores while it starts."""


def run(version: str, names: Sequence[str], records_again: bool) -> int:
    """Installs a version, records and compares; returns the exit status.

    What was recorded is compared, even if a configuration could not be recorded.
    """
    install(version)
    os.nice(LOWER_PRIORITY)
    status = record(version, names, records_again)
    return compare(version, names) or status


def main() -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m fidelity.oracle")
    commands = ("run", "install", "record", "compare", "diff", "keep")
    parser.add_argument("command", choices=commands)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--only", default="", help="configurations, separated by spaces")
    parser.add_argument("--again", action="store_true", help="record also what has not changed")
    options = parser.parse_args()
    names = options.only.split() or list(CONFIGURATIONS)
    if not set(names) <= CONFIGURATIONS.keys():
        parser.error(f"--only: must be of {', '.join(CONFIGURATIONS)}")
    if len(options.versions) != (2 if options.command in ("diff", "keep") else 1):
        parser.error("one version is required, and two for diff and keep")
    version = options.versions[0]
    try:
        if options.command == "run":
            return run(version, names, options.again)
        if options.command == "install":
            install(version)
        elif options.command == "record":
            return record(version, names, options.again)
        elif options.command == "compare":
            return compare(version, names)
        elif options.command == "keep":
            keep(version, options.versions[1], names)
        else:
            compare_versions(version, options.versions[1], names)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
