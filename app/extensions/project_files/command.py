"""`understudy init [FOLDER]`: writes example files into a project.

Copies `examples/project`, and writes JSON Schemas for editors. With `--js`, also copies
`examples/project-js` and the npm package of `clients/js`. The files lie in `FOLDER/understudy` and
`FOLDER/.github/workflows`.
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.extensions.project_files.json_schemas import schema_files
from config.declaration import COMMAND, ConfigError
from config.flags import FlagParser, as_argument, as_command
from vllm_facts.version import DEFAULT, playable_version

ROOT = Path(__file__).parents[3]
ABOUT = "Write a Compose file, a script, tests, and a CI job (docs/tutorial-client.md)."
PYTHON = {"examples/project": "."}
JAVASCRIPT = {"examples/project-js": ".", "clients/js": "understudy/vllm-understudy"}
"""Folders in the project by the folders of templates that are copied to them."""
COMPOSE_ENVIRONMENT = "    environment:\n"
"""Line of the Compose file before the settings."""
NODE_TEST = "agent.test.mjs"
NODE_START = b"start()"
"""Call in the test for Node.js that starts a server without settings."""
CONFTEST = '''"""The release of vLLM that the tests simulate."""

import pytest


@pytest.fixture(scope="session")
def understudy_settings():
    """Returns the settings of all servers."""
    return {{"vllm_version": "{release}"}}
'''
SKIPPED_NAMES = ("__pycache__", "README.md")


@as_command()
def run(argv: Sequence[str]) -> int:
    """Writes all files or none, and returns the exit status.

    Raises:
        ConfigError: A file exists, and the flag --force is not set.
    """
    parser = FlagParser(f"{COMMAND} init", description=ABOUT, allow_abbrev=False)
    parser.examples = (f"{COMMAND} init",)
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="FOLDER", help="the project; default: ."
    )
    parser.add_argument("--js", action="store_true", help="add a test and a CI job for Node.js")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.add_argument(
        "--vllm-version",
        type=as_argument(playable_version),
        metavar="VERSION",
        help=f"version of vLLM for Compose and the tests [{DEFAULT}]",
    )
    arguments = parser.parse_args(argv)
    folders = dict(PYTHON)
    if arguments.js:
        folders |= JAVASCRIPT
    project = Path(arguments.folder)
    templates = _files(project, folders)
    files = {path: template.read_bytes() for path, template in templates.items()}
    for name, text in schema_files().items():
        files[project / "understudy" / name] = text.encode()
    if arguments.vllm_version is not None:
        _set_version(files, project / "understudy", arguments.vllm_version.release)
    for path in files:
        _check_links(project, path)
        if path.exists() and not arguments.force:
            raise ConfigError(f"{path} already exists; use --force to overwrite it")
    # All folders come first: a folder that cannot be made ends the command before any file.
    for folder in {path.parent for path in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        _write(path, content)
        print(path)
    tests = shlex.quote(str(Path(arguments.folder, "understudy")))
    print(f"Next: pip install pytest && pytest {tests}")
    return 0


def _set_version(files: dict[Path, bytes], folder: Path, release: str) -> None:
    """Lets the Compose file and the tests in a folder simulate a release of vLLM.

    The settings of the tests for Node.js are in the file that starts their server.
    """
    compose = folder / "compose.yaml"
    variable = f'{COMPOSE_ENVIRONMENT}      SIM_VLLM_VERSION: "{release}"\n'
    files[compose] = files[compose].replace(COMPOSE_ENVIRONMENT.encode(), variable.encode())
    files[folder / "conftest.py"] = CONFTEST.format(release=release).encode()
    script = folder / NODE_TEST
    if script in files:
        settings = f'start({{ vllmVersion: "{release}" }})'
        files[script] = files[script].replace(NODE_START, settings.encode())


def _check_links(project: Path, path: Path) -> None:
    """Checks that a file below the project, and its folders, are no links to other places.

    Raises:
        ConfigError: the file or a folder is a symbolic link.
    """
    for part in (path, *path.parents):
        if part == project:
            return
        if part.is_symlink():
            raise ConfigError(f"{part} is a symbolic link, and nothing is written through links")


def _write(path: Path, content: bytes) -> None:
    """Writes a file under a new name, and renames it: the other names of a hard link keep theirs.

    Raises:
        OSError: the file cannot be written.
    """
    new_file = path.with_name(f".{path.name}.new")
    descriptor = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(new_file, path)
    except BaseException:
        new_file.unlink(missing_ok=True)
        raise


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
