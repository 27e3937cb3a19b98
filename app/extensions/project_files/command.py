"""`python -m app init [FOLDER]`: writes example files into a project.

Copies `examples/project`; with `--js` also `examples/project-js` and the npm package of
`clients/js`. The files lie in `FOLDER/understudy` and `FOLDER/.github/workflows`.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from config.declaration import COMMAND, ConfigError
from config.flags import FlagParser, as_command

ROOT = Path(__file__).parents[3]
ABOUT = "Write a Compose file, a script, tests, and a CI job (docs/tutorial-client.md)."
PYTHON = {"examples/project": "."}
JAVASCRIPT = {"examples/project-js": ".", "clients/js": "understudy/vllm-understudy"}
"""Folders in the project by the folders of templates that are copied to them."""
SKIPPED_NAMES = ("__pycache__", "README.md")


@as_command()
def run(argv: Sequence[str]) -> int:
    """Writes all files or none, and returns the exit status.

    Raises:
        ConfigError: A file exists, and the flag --force is not set.
    """
    parser = FlagParser(f"{COMMAND} init", description=ABOUT, allow_abbrev=False)
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="FOLDER", help="the project; default: ."
    )
    parser.add_argument("--js", action="store_true", help="add a test and a CI job for Node.js")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    arguments = parser.parse_args(argv)
    folders = dict(PYTHON)
    if arguments.js:
        folders |= JAVASCRIPT
    files = _files(Path(arguments.folder), folders)
    for path in files:
        if path.exists() and not arguments.force:
            raise ConfigError(f"{path} already exists; use --force to overwrite it")
    # All folders come first: a folder that cannot be made ends the command before any file.
    for folder in {path.parent for path in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for path, template in files.items():
        path.write_bytes(template.read_bytes())
        print(path)
    tests = shlex.quote(str(Path(arguments.folder, "understudy")))
    print(f"Next: pip install pytest && pytest {tests}")
    return 0


def _files(project: Path, folders: dict[str, str]) -> dict[Path, Path]:
    """Returns the templates by their paths in the project.

    Raises:
        OSError: The installation has no templates.
    """
    files = {}
    for template_folder, project_folder in folders.items():
        for template in _files_below(ROOT / template_folder):
            relative_path = template.relative_to(ROOT / template_folder)
            files[project / project_folder / relative_path] = template
    return files


def _files_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in SKIPPED_NAMES:
            continue
        if path.is_dir():
            yield from _files_below(path)
        else:
            yield path
