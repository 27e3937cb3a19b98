"""Prints what came, went and changed between two versions of vLLM, without running them.

    $ python -m scripts.version_diff 0.32.0 0.33.0
    $ python -m scripts.version_diff vllm-0.32.0.tar.gz vllm-0.33.0.whl --json changes.json

A version is a number, whose source distribution is downloaded, or the path of a source
distribution, a wheel, or a folder that contains the package `vllm`.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scripts.version_diff.difference import differences, text_of
from scripts.version_diff.download import DownloadError, download
from scripts.version_diff.fact import Fact
from scripts.version_diff.package import read_package
from scripts.version_diff.reading import read_facts


def main(arguments: Sequence[str]) -> int:
    """Prints the list; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m scripts.version_diff",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("versions", nargs=2, metavar="VERSION")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the list as JSON")
    options = parser.parse_args(arguments)
    try:
        old_facts, new_facts = map(_facts_of, options.versions)
    except (DownloadError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    changes = differences(old_facts, new_facts)
    print(text_of(changes))
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(changes), indent=1))
    return 0


def _facts_of(version: str) -> list[Fact]:
    if Path(version).exists():
        return read_facts(read_package(Path(version)))
    with tempfile.TemporaryDirectory(prefix="version-diff-") as folder:
        return read_facts(read_package(download(version, Path(folder))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
