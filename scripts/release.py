"""Checks that a release is consistent: python -m scripts.release TAG.

The tag is `v` and the version of pyproject.toml. The npm package has the same version, and
CHANGELOG.md has a section of it. Prints one line for each contradiction.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def contradictions(tag: str, root: Path = ROOT) -> list[str]:
    """Returns a line for each place that names another version than `tag`."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    package = json.loads((root / "clients" / "js" / "package.json").read_text("utf-8"))
    version = tag.removeprefix("v")
    lines = []
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        lines.append(f"a tag must be like v0.1.0, got {tag!r}")
    if project["version"] != version:
        lines.append(f"pyproject.toml has version {project['version']}, the tag has {version}")
    if package["version"] != version:
        lines.append(f"clients/js has version {package['version']}, the tag has {version}")
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"(?m)^## \[?{re.escape(version)}\b", changelog):
        lines.append(f"CHANGELOG.md has no section {version}")
    return lines


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    if len(arguments) != 1:
        print("error: exactly one tag is required: TAG=v0.1.0", file=sys.stderr)
        return 2
    lines = contradictions(arguments[0])
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    return min(len(lines), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
