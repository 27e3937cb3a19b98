"""`python -m app init [FOLDER]`: writes the files of a first hour into a project.

Copies `examples/project`; with `--js` also `examples/project-js` and the npm package of
`clients/js`. The files lie in `FOLDER/understudy` and `FOLDER/.github/workflows`.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from config.declaration import COMMAND, ConfigError
from config.flags import FlagParser, as_command

ROOT = Path(__file__).parents[2]
ABOUT = "Write a compose file, a script, tests and a CI job to begin with (docs/index.md)."
PYTHON = {"examples/project": "."}
JAVASCRIPT = {"examples/project-js": ".", "clients/js": "understudy/vllm-understudy"}
"""Folder of templates -> its place in the project."""
LEFT_OUT = ("__pycache__", "README.md")


@as_command()
def run(argv: Sequence[str]) -> int:
    """Writes all files or none, and returns the exit status.

    ConfigError for a file that is there already.
    """
    parser = FlagParser(f"{COMMAND} init", description=ABOUT, allow_abbrev=False)
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="FOLDER", help="the project; default: ."
    )
    parser.add_argument("--js", action="store_true", help="add a test and a CI job for Node.js")
    parser.add_argument("--force", action="store_true", help="write over files that are there")
    given = parser.parse_args(argv)
    files = _files(Path(given.folder), PYTHON | (JAVASCRIPT if given.js else {}))
    for path in files:
        if path.exists() and not given.force:
            raise ConfigError(f"{path}: is there already; --force writes over it")
    for folder in {path.parent for path in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for path, template in files.items():
        path.write_bytes(template.read_bytes())
        print(path)
    print(
        f"Next: pip install pytest && pytest {shlex.quote(str(Path(given.folder, 'understudy')))}"
    )
    return 0


def _files(project: Path, places: dict[str, str]) -> dict[Path, Path]:
    """Returns path in the project -> template. OSError if an installation has no templates."""
    return {
        project / place / template.relative_to(ROOT / folder): template
        for folder, place in places.items()
        for template in _below(ROOT / folder)
    }


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name not in LEFT_OUT:
            yield from _below(path) if path.is_dir() else [path]
