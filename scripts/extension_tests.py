"""Finds changed extensions, and the tests of an extension.

python -m scripts.extension_tests tests NAME: prints the test paths for an extension, which are its
folder in `tests/extensions` or its package's folder in `tests`, the files of other folders that
import it, and the tests of the contract.

python -m scripts.extension_tests changed COMMIT: prints the names of the extensions that changed
since a commit, as a JSON list. A change of the core counts for every extension.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTENSIONS = "app/extensions"
TESTS = "tests/extensions"
PACKAGES = {"workbench_commands": ("workbench", "tests/workbench")}
"""Extension -> the package at the top level that it names, and its tests."""
CORE = "app/core"
CONTRACT_TESTS = ("tests/core/test_extensions.py", "tests/core/wire/test_removal.py")


def extension_names(root: Path = ROOT) -> list[str]:
    """Returns the names of the extensions in the repository."""
    return sorted(path.parent.name for path in (root / EXTENSIONS).glob("*/__init__.py"))


def pytest_paths(name: str, root: Path = ROOT) -> list[str]:
    """Returns the paths to pass to pytest for an extension."""
    module = f"{EXTENSIONS.replace('/', '.')}.{name}"
    folder = f"{TESTS}/{name}"
    paths = [*CONTRACT_TESTS]
    if (root / folder).is_dir():
        paths.append(folder)
    paths += PACKAGES.get(name, ())[1:]
    for file in sorted((root / "tests").rglob("test_*.py")):
        path = str(file.relative_to(root))
        if not path.startswith(f"{folder}/") and module in file.read_text("utf-8"):
            paths.append(path)
    return paths


def changed_extensions(changed_files: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns the extensions among `names` to which the changed files belong."""
    files = list(changed_files)
    if any(file.startswith(f"{CORE}/") for file in files):
        return sorted(names)
    changed = []
    for name in sorted(names):
        packages = tuple(f"{package}/" for package in PACKAGES.get(name, ()))
        folders = (f"{EXTENSIONS}/{name}/", f"{TESTS}/{name}/", *packages)
        if any(file.startswith(folders) for file in files):
            changed.append(name)
    return changed


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    match arguments:
        case ["tests", name] if name in extension_names():
            print(" ".join(pytest_paths(name)))
        case ["changed", commit]:
            command = ["git", "diff", "--name-only", f"{commit}...HEAD"]
            output = subprocess.check_output(command, cwd=ROOT, text=True)
            print(json.dumps(changed_extensions(output.splitlines(), extension_names())))
        case ["tests", name]:
            names = ", ".join(extension_names())
            print(f"error: no extension {name!r}; extensions: {names}", file=sys.stderr)
            return 2
        case _:
            print("error: expected tests EXTENSION or changed COMMIT", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
