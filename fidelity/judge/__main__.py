"""Runs vLLM's own HTTP tests against this checkout, and compares with the known failures.

    $ python -m fidelity.judge                                # all files of files.txt
    $ python -m fidelity.judge tests/entrypoints/openai/models
    $ python -m fidelity.judge --write                        # update failures.tsv afterwards

The exit status is 1 if a test fails, or a file cannot be collected, that is not in failures.tsv, or
if pytest could not run them.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from fidelity.judge.environment import environment_of, prepare, pytest_command
from fidelity.judge.understudy_outcomes import OUTCOMES
from fidelity.oracle.servers import simulated_version_of

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
FILES = HERE / "files.txt"
FAILURES = HERE / "failures.tsv"
VERSION = "0.32.0"
ENDLESS = (
    "tests/entrypoints/serve/lora/test_lora_adapters.py"
    "::test_loading_invalid_adapters_does_not_break_others"
)
"""A test that sends requests forever after a failure, and fails without `require-lora-files`."""
UNKNOWN = "unknown"
RAN = (0, 1)
"""Exit statuses of pytest after it has run all tests; some have failed after 1."""


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", nargs="*", help="test files of vLLM; default: all of files.txt")
    parser.add_argument(
        "--folder", type=Path, default=CHECKOUT / ".judge", help="has a folder for each version"
    )
    parser.add_argument("--version", default=VERSION, help="version of vLLM (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write failures.tsv")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve() / arguments.version
    python = prepare(folder, arguments.version)
    simulated_version = simulated_version_of(arguments.version)
    status = run(python, folder, arguments.tests or listed_files(folder), simulated_version)
    outcomes = read_outcomes(folder)
    known_failures = read_failures()
    if arguments.write:
        write_failures(known_failures, outcomes)
    return max(report(outcomes, known_failures), report_status(status))


def listed_files(folder: Path) -> list[str]:
    """Returns the test files that need a server, and prints which of them a version lacks."""
    files = []
    for line in FILES.read_text("utf-8").split():
        file = f"tests/entrypoints/{line}"
        if (folder / file).exists():
            files.append(file)
        else:
            print(f"not in the tests of vLLM {folder.name}: {file}")
    return files


def run(python: Path, folder: Path, tests: Iterable[str], simulated_version: str) -> int:
    """Runs `tests` in `folder`. Returns the exit status of pytest."""
    (folder / OUTCOMES).unlink(missing_ok=True)
    command = [*pytest_command(python, folder, [*tests]), f"--deselect={ENDLESS}"]
    environment = environment_of(folder, HERE, CHECKOUT, simulated_version)
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def read_outcomes(folder: Path) -> dict[str, str]:
    """Returns the outcome of each test, and of each file that cannot be collected, by its id."""
    outcomes: dict[str, str] = {}
    lines = folder / OUTCOMES
    if lines.exists():
        for line in lines.read_text("utf-8").splitlines():
            entry = json.loads(line)
            if outcomes.get(entry["test"]) != "failed":  # the end of a test may fail, too
                outcomes[entry["test"]] = entry["outcome"]
    return outcomes


def report_status(status: int) -> int:
    """Prints that pytest could not run all tests. Returns the exit status."""
    if status in RAN:
        return 0
    print(f"pytest could not run all tests: its exit status is {status}")
    return 1


def read_failures() -> dict[str, str]:
    """Returns the reason of each known failure, by the id of the test."""
    reasons = {}
    for line in FAILURES.read_text("utf-8").splitlines():
        reason, _, test = line.partition("\t")
        reasons[test] = reason
    return reasons


def write_failures(known_failures: Mapping[str, str], outcomes: Mapping[str, str]) -> None:
    """Replaces the list: tests that pass now leave it, and new failures get the reason unknown."""
    reasons = {test: why for test, why in known_failures.items() if outcomes.get(test) != "passed"}
    for test, outcome in outcomes.items():
        if outcome == "failed":
            reasons.setdefault(test, UNKNOWN)
    lines = [f"{reason}\t{test}\n" for test, reason in sorted(reasons.items())]
    FAILURES.write_text("".join(lines), "utf-8")


def report(outcomes: Mapping[str, str], known_failures: Mapping[str, str]) -> int:
    """Prints counts, new failures and fixed tests. Returns the exit status."""
    counts = Counter(outcomes.values())
    reasons = Counter(
        known_failures[test]
        for test, outcome in outcomes.items()
        if outcome == "failed" and test in known_failures
    )
    new_failures = []
    for test, outcome in outcomes.items():
        if outcome == "failed" and test not in known_failures:
            new_failures.append(test)
        if outcome == "passed" and test in known_failures:
            print(f"passes now ({known_failures[test]}): {test}")
    for test in new_failures:
        print(f"NEW FAILURE: {test}")
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    for reason, count in reasons.most_common():
        print(f"  {count:4} failed as listed: {reason}")
    if not outcomes:
        print("no test ran")
    return int(bool(new_failures) or not outcomes)


if __name__ == "__main__":
    sys.exit(main())
