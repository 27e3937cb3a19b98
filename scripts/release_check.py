"""Builds everything that a release publishes, and checks it: python -m scripts.release_check.

    $ make release-check               # the version of pyproject.toml
    $ make release-check TAG=v0.1.0    # fails if the versions differ from the tag

The files of HEAD are exported to a temporary folder, so that nothing else can enter a package. The
wheel, the source distribution, the npm package and the build context of the image are built there.
The wheel is installed in an empty environment of each supported Python that this machine has, the
source distribution and the npm package in one. Each installation runs the quick start: a server, a
request, and the project of `understudy init` or a script for Node.js. At last, `dist` gets the
packages, and the commands that publish them are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.release import contradictions

ROOT = Path(__file__).resolve().parent.parent
TWINE = "twine==7.0.0"
STEP_LIMIT_S = 900
FORBIDDEN_FILES = re.compile(r"(^|/)(tests|research|\.git|__pycache__)(/|$)|\.pyc$")
"""Files that no package may have."""
REQUIRED_FILES = (
    "vllm_understudy/app/core/cli.py",
    "vllm_understudy/config/__init__.py",
    "vllm_understudy/vllm_facts/__init__.py",
    "vllm_understudy/workbench/__init__.py",
    "vllm_understudy/gunicorn.conf.py",
    "vllm_understudy/py.typed",
    "vllm_understudy/examples/project/understudy/test_agent.py",
)
"""Some files without which a wheel cannot work."""
IMAGE_REQUIRED_FILES = ("Dockerfile", "app/core/cli.py", "config/__init__.py", "wsgi.py", "uv.lock")
FOREIGN_VARIABLES = ("PYTHON", "SIM_", "PYTEST_", "VIRTUAL_ENV")
"""Prefixes of variables that would help a package to find the checkout."""
NODE_SCRIPT = """
import assert from "node:assert/strict";
import { start } from "vllm-understudy";
const server = await start({ command: [process.env.UNDERSTUDY] });
try {
  await server.reply({ then: { text: "Hello from the release." } });
  const answer = await fetch(`${server.baseURL}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content: "Hi" }] }),
  });
  const body = await answer.json();
  assert.equal(body.choices[0].message.content, "Hello from the release.");
  await server.verify({ times: 1 });
} finally {
  await server.stop();
}
"""
PYTHON_SCRIPT = """
import json
import urllib.request
import vllm_understudy

with vllm_understudy.running_server() as server:
    server.reply(then={"text": "Hello from the release."})
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        content = json.load(answer)["choices"][0]["message"]["content"]
    assert content == "Hello from the release.", content
    server.assert_called(times=1)
"""


class ReleaseError(Exception):
    """A step of the check failed; the message has its output."""


def run(command: Sequence[str | Path], cwd: Path, **variables: str) -> str:
    """Runs a command without the variables of this checkout, and returns its output.

    Raises:
        ReleaseError: The command fails, is not installed, or takes too long.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_VARIABLES)
    }
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=STEP_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(f"{' '.join(words)}: {error}") from None
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


class Release:
    """The packages of one commit; `folder` is a temporary folder for all environments."""

    def __init__(self, root: Path, folder: Path, uv: Path) -> None:
        self.root = root
        self.folder = folder
        self.uv = uv
        self.sources = folder / "sources"
        self.dist = folder / "dist"
        self.dist.mkdir()
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
        self.version: str = project["project"]["version"]
        self.pytest: str = next(
            line for line in project["dependency-groups"]["test"] if line.startswith("pytest==")
        )
        self.pythons = list(supported_pythons(project))

    def export(self) -> str:
        """Writes the files of HEAD to `sources`, and returns the commit.

        Raises:
            ReleaseError: The tree has changes or unknown files, which a release would not have.
        """
        changes = run(["git", "status", "--porcelain"], cwd=self.root)
        if changes:
            raise ReleaseError(f"the tree is not clean; commit or remove:\n{changes.rstrip()}")
        archive = self.folder / "sources.tar"
        run(["git", "archive", "--output", archive, "HEAD"], cwd=self.root)
        self.sources.mkdir()
        run(["tar", "--extract", "--file", archive], cwd=self.sources)
        return run(["git", "rev-parse", "--short", "HEAD"], cwd=self.root).strip()

    def build(self) -> list[Path]:
        """Builds the packages, and returns their files."""
        seconds = run(["git", "log", "-1", "--format=%ct"], cwd=self.root).strip()
        run(
            [self.uv, "build", "--quiet", "--out-dir", self.dist, self.sources],
            cwd=self.folder,
            SOURCE_DATE_EPOCH=seconds,
        )
        run(
            ["npm", "pack", self.sources / "clients" / "js", "--pack-destination", self.dist],
            cwd=self.folder,
        )
        self._pack_image_context(int(seconds))
        return sorted(path for path in self.dist.iterdir() if path.name != ".gitignore")

    def _pack_image_context(self, seconds: int) -> None:
        context = self.dist / f"understudy-image-{self.version}.tar"
        with tarfile.open(context, "w") as tar:
            for name in ["Dockerfile", *image_files(self.sources)]:
                content = (self.sources / name).read_bytes()
                member = tarfile.TarInfo(name)
                member.size = len(content)
                member.mtime = seconds
                tar.addfile(member, io.BytesIO(content))

    @property
    def wheel(self) -> Path:
        """The wheel."""
        return next(self.dist.glob("*.whl"))

    @property
    def sdist(self) -> Path:
        """The source distribution."""
        return next(self.dist.glob("vllm_understudy-*.tar.gz"))

    @property
    def npm_package(self) -> Path:
        """The npm package."""
        return next(self.dist.glob("*.tgz"))

    @property
    def image_context(self) -> Path:
        """The build context of the image, with its Dockerfile."""
        return next(self.dist.glob("understudy-image-*.tar"))

    def check_contents(self) -> None:
        """Checks the names of the files in the packages, and the metadata by twine.

        Raises:
            ReleaseError: A file is missing, or must not be there.
        """
        run(
            [
                self.uv,
                "tool",
                "run",
                "--from",
                TWINE,
                "twine",
                "check",
                "--strict",
                self.wheel,
                self.sdist,
            ],
            cwd=self.folder,
        )
        package = json.loads((self.sources / "clients" / "js" / "package.json").read_text("utf-8"))
        module_files = [Path(target["default"]).name for target in package["exports"].values()]
        npm_files = [f"package/{name}" for name in [*module_files, "package.json", "README.md"]]
        check_names(self.wheel, REQUIRED_FILES)
        check_names(self.sdist, [])
        check_names(self.npm_package, npm_files)
        check_names(self.image_context, IMAGE_REQUIRED_FILES)

    def check_python(self, package: Path, version: str, python: str) -> Path:
        """Installs a package in an empty environment, runs the quick start, and returns `bin`."""
        name = f"{version}-{package.suffix.lstrip('.')}"
        environment = self.folder / name
        run([self.uv, "venv", "--quiet", "--python", python, environment], cwd=self.folder)
        run(
            [
                self.uv,
                "pip",
                "install",
                "--quiet",
                "--python",
                environment / "bin" / "python",
                package,
                self.pytest,
            ],
            cwd=self.folder,
        )
        programs = environment / "bin"
        printed = run([programs / "understudy", "--version"], cwd=self.folder)
        if self.version not in printed:
            raise ReleaseError(f"{package.name}: --version prints {printed!r}")
        run([programs / "python", "-c", PYTHON_SCRIPT], cwd=self.folder)
        project = self.folder / f"{name}-project"
        project.mkdir()
        run([programs / "understudy", "init"], cwd=project)
        run([programs / "python", "-m", "pytest", "-q", "understudy"], cwd=project)
        return programs

    def check_npm(self, programs: Path) -> None:
        """Installs the npm package in an empty project, and runs a server from it."""
        project = self.folder / "npm-project"
        project.mkdir()
        (project / "package.json").write_text('{"private": true, "type": "module"}')
        run(["npm", "install", "--no-audit", "--no-fund", self.npm_package], cwd=project)
        (project / "check.mjs").write_text(NODE_SCRIPT)
        run(["node", "check.mjs"], cwd=project, UNDERSTUDY=str(programs / "understudy"))

    def check_image(self, programs: Path) -> str:
        """Runs the server from the image's context, and builds the image if Docker runs.

        Returns a line that says what was checked.
        """
        context = self.folder / "image-context"
        context.mkdir()
        run(["tar", "--extract", "--file", self.image_context], cwd=context)
        run(
            [programs / "python", "-m", "app", "--version"],
            cwd=context,
            PYTHONPATH=str(context),
        )
        requirements = run(
            [programs / "python", "scripts/locked.py", "--lock", "uv.lock", "grpc", "tracing"],
            cwd=context,
        )
        if "gunicorn==" not in requirements:
            raise ReleaseError("the requirements of the image lack gunicorn")
        try:
            run(["docker", "info"], cwd=self.folder)
        except ReleaseError:
            return "image context; the image was not built, because Docker does not run here"
        with self.image_context.open("rb") as file:
            tag = f"understudy:{self.version}"
            done = subprocess.run(["docker", "build", "--tag", tag, "-"], stdin=file, check=False)
        if done.returncode != 0:
            raise ReleaseError("docker build failed")
        return "image context, and the image built of it"

    def deliver(self, target: Path) -> None:
        """Copies the packages and their checksums to `target`."""
        target.mkdir(exist_ok=True)
        lines = []
        for path in (self.wheel, self.sdist, self.npm_package, self.image_context):
            shutil.copy(path, target / path.name)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines.append(f"{digest}  {path.name}\n")
        (target / "SHA256SUMS").write_text("".join(lines))

    def instructions(self) -> str:
        """Returns the commands that publish the packages."""
        version = self.version
        major = f"v{version.partition('.')[0]}"
        return f"""\
To publish {version}:

  1. In CHANGELOG.md, replace "unreleased" by the date. Replace OWNER in pyproject.toml and docs by
     the owner of the repository, and URL in docs/install.md by its address or by the name on the
     index. Commit, and run this check again.
  2. git tag --annotate v{version} --message "Understudy {version}" && git push origin v{version}
  3. uv tool run --from {TWINE} twine upload dist/{self.wheel.name} dist/{self.sdist.name}
  4. npm publish dist/{self.npm_package.name} --access public
  5. docker build --tag REGISTRY/understudy:{version} - <dist/{self.image_context.name}
     docker push REGISTRY/understudy:{version}
  6. Attach dist/SHA256SUMS to the release notes, and move the tag of the action:
     git tag --force {major} v{version} && git push --force origin {major}"""


def supported_pythons(project: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Yields version and path of each installed Python that the project supports."""
    text = json.dumps(project)
    first = re.search(r'"requires-python": ">=3\.(\d+)"', text)
    last = re.search(r"python_version < '3\.(\d+)'", text)
    if first is None or last is None:
        raise ReleaseError("pyproject.toml names no range of Python")
    for minor in range(int(first[1]), int(last[1])):
        version = f"3.{minor}"
        candidates = [shutil.which(f"python{version}")]
        candidates += map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
        for python in candidates:
            if python is not None and reports_version(python, version):
                yield version, python
                break


def reports_version(python: str, version: str) -> bool:
    """Returns whether `python` runs, and is of this version: a shim may be of none."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def image_files(sources: Path) -> list[str]:
    """Returns the files of the image's context, which .dockerignore selects."""
    lines = (sources / ".dockerignore").read_text("utf-8").splitlines()
    names = []
    for line in lines:
        if line.startswith("!"):
            path = sources / line[1:]
            files = [path, *sorted(path.rglob("*"))]
            names += [str(file.relative_to(sources)) for file in files if file.is_file()]
    return names


def names_of(package: Path) -> list[str]:
    """Returns the names of the files in a package."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return wheel.namelist()
    with tarfile.open(package) as archive:
        return archive.getnames()


def check_names(package: Path, required: Sequence[str]) -> None:
    """Raises ReleaseError if a package has files that users do not need, or lacks a file."""
    names = names_of(package)
    for name in names:
        if FORBIDDEN_FILES.search(name):
            raise ReleaseError(f"{package.name} contains {name}")
    for name in required:
        if name not in names:
            raise ReleaseError(f"{package.name} lacks {name}")


def check(release: Release, tag: str) -> None:
    """Runs all checks, and prints a line for each.

    Raises:
        ReleaseError: A check failed.
    """
    lines = contradictions(tag or f"v{release.version}", release.root)
    if lines:
        raise ReleaseError("\n".join(lines))
    print(f"ok: version {release.version} everywhere")
    print(f"ok: clean tree, commit {release.export()}")
    for path in release.build():
        print(f"ok: built {path.name}, {path.stat().st_size:,} bytes")
    release.check_contents()
    print("ok: contents, and metadata by twine check --strict")
    if not release.pythons:
        raise ReleaseError("no supported Python is installed")
    for version, python in release.pythons:
        programs = release.check_python(release.wheel, version, python)
        print(f"ok: wheel and quick start in an empty environment of Python {version}")
    version, python = release.pythons[0]
    release.check_python(release.sdist, version, python)
    print(f"ok: source distribution and quick start in an empty environment of Python {version}")
    release.check_npm(programs)
    print("ok: npm package and quick start in an empty project")
    print(f"ok: {release.check_image(programs)}")
    release.deliver(release.root / "dist")
    print(f"ok: dist has the packages and SHA256SUMS\n\n{release.instructions()}")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release_check")
    parser.add_argument("tag", nargs="?", default="", help="such as v0.1.0")
    parser.add_argument("--uv", type=Path, default=Path(sys.executable).with_name("uv"))
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        with tempfile.TemporaryDirectory(prefix="understudy-release-") as folder:
            check(Release(ROOT, Path(folder), options.uv), options.tag)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
