"""The container image without a container engine: what is copied is there, and a server runs from it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.running_server import ROOT

WILDCARDS = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of .dockerignore: `pattern` matches whole paths, `keeps` marks an exception (!)."""

    pattern: re.Pattern[str]
    keeps: bool

    @staticmethod
    def read(line: str) -> Rule:
        text = line.removeprefix("!").strip().strip("/").removeprefix("./")
        parts = re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?|\[[^]]+\]|\\.)", text)
        return Rule(re.compile("".join(map(_as_regex, parts))), line.startswith("!"))


def _as_regex(part: str) -> str:
    if part.startswith("["):
        return part
    return WILDCARDS.get(part) or re.escape(part.removeprefix("\\"))


def rules(text: str) -> list[Rule]:
    lines = [line.strip() for line in text.splitlines()]
    return [Rule.read(line) for line in lines if line and not line.startswith("#")]


def is_sent(path: str, ignore: Sequence[Rule]) -> bool:
    """Whether Docker sends `path` to the build: the last rule decides that matches it or a folder above."""
    above = path.split("/")
    ways = ["/".join(above[: k + 1]) for k in range(len(above))]
    kept = True
    for rule in ignore:
        if any(rule.pattern.fullmatch(way) for way in ways):
            kept = rule.keeps
    return kept


def build_context(folder: Path, ignore: Sequence[Rule]) -> Iterator[str]:
    """The files of `folder` that Docker sends to the build, as paths within it."""
    reaching_in = any(rule.keeps and "/" in rule.pattern.pattern for rule in ignore)
    for parent, folders, files in os.walk(folder):
        within = Path(parent).relative_to(folder)
        if not reaching_in:  # then nothing of an ignored folder is sent, and environments are large
            folders[:] = [name for name in folders if is_sent((within / name).as_posix(), ignore)]
        yield from (path for name in files if is_sent(path := (within / name).as_posix(), ignore))


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a Dockerfile, with its flags (--from=...) apart."""

    name: str
    flags: tuple[str, ...]
    words: tuple[str, ...]


def steps(dockerfile: str) -> list[Step]:
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", dockerfile))
    read = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, *words = shlex.split(line)
        flags = tuple(word for word in words if word.startswith("--")) if name == "COPY" else ()
        read.append(Step(name.upper(), flags, tuple(word for word in words if word not in flags)))
    return read


STEPS = steps((ROOT / "Dockerfile").read_text())
IGNORE = rules((ROOT / ".dockerignore").read_text())


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context, laid out as Docker lays it out."""
    laid_out = tmp_path_factory.mktemp("context")
    for path in build_context(ROOT, IGNORE):
        (laid_out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, laid_out / path)
    return laid_out


@pytest.mark.parametrize(
    ("ignored", "sent", "kept_back"),
    [
        ("*\n!app", ["app/a.py", "app/b/c.py"], ["tests/a.py", "README.md", "apps/a.py"]),
        ("*\n!app\n**/__pycache__", ["app/a.py"], ["app/__pycache__/a.pyc", "app/b/__pycache__/a.pyc"]),
        ("*\n!requirements*.txt", ["requirements.txt", "requirements-dev.txt"], ["a/requirements.txt"]),
        ("**/*.py[cod]", ["a.py", "b/a.py"], ["a.pyc", "b/c/a.pyo"]),
        ("docs/**", ["docs"], ["docs/a.md", "docs/b/c.md"]),
        ("/docs/\n# a comment\n\n!docs/api.md", ["docs/api.md", "b/docs/x"], ["docs/a.md"]),
        ("!a.md\n*.md", ["b/a.md"], ["a.md"]),
        ("a?.txt", ["a.txt", "a/b.txt"], ["ab.txt"]),
    ],
)
def test_files_are_ignored_as_docker_ignores_them(
    ignored: str, sent: list[str], kept_back: list[str]
) -> None:
    ignore = rules(ignored)
    assert [path for path in sent + kept_back if is_sent(path, ignore)] == sent


def test_every_file_that_is_copied_is_in_the_context(context: Path) -> None:
    copies = [step for step in STEPS if step.name in ("COPY", "ADD")]
    sources = [word for step in copies if not step.flags for word in step.words[:-1]]
    assert "requirements.txt" in sources and "." in sources
    assert [source for source in sources if not (context / source).exists()] == []


def test_every_requirement_that_is_installed_was_copied_before(context: Path) -> None:
    copied: set[str] = set()
    installed: set[str] = set()
    for step in STEPS:
        if step.name == "COPY":
            copied.update(step.words[:-1])
        for file in re.findall(r"--requirement (\S+)", " ".join(step.words)):
            included = re.findall(r"(?m)^-r (\S+)", (context / file).read_text())
            assert copied.issuperset([file, *included])
            installed.add(file)
    assert installed == {"requirements.txt", "requirements-tracing.txt"}


def test_the_context_holds_what_runs_and_nothing_else(context: Path) -> None:
    names = {path.name for path in context.iterdir()}
    requirements = {path.name for path in ROOT.glob("requirements*.txt")}
    assert names == {"app", "config", "wsgi.py", "gunicorn.conf.py", "LICENSE", *requirements}
    assert not list(context.rglob("__pycache__")) and not list(context.rglob("*.pyc"))


def test_what_is_compiled_and_run_is_there(context: Path) -> None:
    [compiled] = [step.words for step in STEPS if "compileall" in step.words]
    assert all((context / word).exists() for word in compiled[compiled.index("-q") + 1 :])
    [check] = [step.words for step in STEPS if step.name == "HEALTHCHECK"]
    module = check[-1].strip("[],").replace(".", "/")
    assert (context / f"{module}.py").exists()


def test_a_server_answers_from_the_context_alone(context: Path) -> None:
    program = (
        "import wsgi; client = wsgi.app.test_client();"
        "body = {'prompt': 'Hello there', 'max_tokens': 3};"
        "assert client.post('/v1/completions', json=body).get_json()['usage']['completion_tokens'] == 3;"
        "assert client.get('/metrics').status_code == 200;"
        "print(wsgi.__file__)"
    )
    ours = ("SIM_", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=context, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == context
