"""The oracle: records a real vLLM's answers to the catalogue, and compares ours with them.

python -m fidelity.oracle install VERSION: installs vLLM for CPUs into .oracle/VERSION
python -m fidelity.oracle record VERSION: starts it in each configuration and stores its answers
python -m fidelity.oracle compare VERSION: starts Understudy likewise and prints agreement by area
python -m fidelity.oracle diff FROM TO: prints what differs between the answers of two versions
python -m fidelity.oracle keep VERSION NEWER: keeps the answers that differ in the repository
"""

import argparse
import subprocess
import sys

from fidelity.oracle.agreement import compare
from fidelity.oracle.configurations import CONFIGURATIONS
from fidelity.oracle.install import install
from fidelity.oracle.keeping import keep
from fidelity.oracle.recording import record
from fidelity.oracle.releases import compare_versions


def main() -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m fidelity.oracle")
    parser.add_argument("command", choices=("install", "record", "compare", "diff", "keep"))
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
