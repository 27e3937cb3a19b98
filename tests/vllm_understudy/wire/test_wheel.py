"""What a user installs:

one package, with all that a server needs, in an environment that had nothing.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.running_server import ROOT, ending, free_port

pytestmark = pytest.mark.timeout(300)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
GROUPS = PYPROJECT["dependency-groups"]
CLIENT = Path(__file__).with_name("client_project.py")
HERE = Path(sys.executable).parent
PATIENCE_S = 120
BIND = "-b 127.0.0.1:{} --log-level debug"
SOURCES = (
    *("app", "config", "vllm_facts", "workbench", "vllm_understudy", "clients/js"),
    *("examples/project", "examples/project-js"),
    *("gunicorn.conf.py", "pyproject.toml", "README.md", "LICENSE"),
)


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=cwd, env=plain(), capture_output=True, text=True, timeout=PATIENCE_S
    )


def plain() -> dict[str, str]:
    """Our environment without what would help a package to find our tree."""
    left_out = ("PYTHON", "SIM_", "PYTEST_", "VIRTUAL_ENV")
    return {name: text for name, text in os.environ.items() if not name.startswith(left_out)}


def need_index(done: subprocess.CompletedProcess[str]) -> None:
    """Skip what needs packages from an index that cannot be reached; other failures are failures."""
    if re.search(
        "Failed to (fetch|download)|No matching distribution|Connection(Error| broken)", done.stderr
    ):
        pytest.skip(f"no index of packages: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a checkout that a wheel is built from, without those that git does not know."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    need_index(run(HERE / "uv", "build", "-q", "--wheel", "-o", folder, checkout, cwd=folder))
    [wheel_file] = folder.glob("*.whl")
    return wheel_file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which nothing but the wheel was installed, and pytest."""
    folder = tmp_path_factory.mktemp("environment")
    run(HERE / "python", "-m", "venv", "--without-pip", folder, cwd=folder)
    pytests = [line for line in GROUPS["test"] if line.startswith("pytest==")]
    python = folder / "bin" / "python"
    # Not by pip, which takes a minute to compile what is hardly imported.
    need_index(
        run(HERE / "uv", "pip", "install", "-q", "--python", python, wheel, *pytests, cwd=folder)
    )
    return folder / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The project of somebody who has packages with the names of ours."""
    for name in ("app", "config", "vllm_facts", "workbench"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "wsgi.py").write_text("raise SystemExit('of somebody else')\n")
    return tmp_path


@contextmanager
def serving(words: Sequence[str | Path], cwd: Path, address: str = "--port {}") -> Iterator[str]:
    """The server's address; it answers inside the block and ends by SIGTERM with status 0."""
    port = free_port()
    command = [*words, *address.format(port).split()]
    with (cwd / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=cwd, env=plain(), stderr=log, start_new_session=True
        )
    (cwd / "pid").write_text(str(process.pid))
    url = f"http://127.0.0.1:{port}"
    with ending(process, lambda: is_healthy(url), PATIENCE_S):
        yield url


def is_healthy(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=5).status_code == 200
    except (requests.ConnectionError, requests.Timeout):
        return False


def test_wheel_is_one_package_that_contains_the_source_tree(checkout: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = {str(path.relative_to(checkout)) for path in checkout.rglob("*") if path.is_file()}
    files -= {"pyproject.toml", "README.md", "LICENSE"}
    assert packed == {f"vllm_understudy/{name.removeprefix('vllm_understudy/')}" for name in files}
    assert "vllm_understudy/vllm_facts/options.json" in packed
    assert "vllm_understudy/app/core/engine/profiles/qwen3-14b-h100.yaml" in packed


def test_installed_wheel_serves_requests(installed: Path, elsewhere: Path) -> None:
    (elsewhere / "profile.yaml").write_text("max-num-seqs: 3\n")
    command = [
        installed / "understudy",
        "serve",
        "Qwen/Qwen3-8B",
        "--gpu-memory-utilization",
        "0.9",
    ]
    with serving([*command, "--time-to-first-token", "1ms"], elsewhere) as url:
        body = {"prompt": "Hello there", "max_tokens": 3}
        answer = requests.post(f"{url}/v1/completions", json=body, timeout=20).json()
        assert (answer["model"], answer["usage"]["completion_tokens"]) == ("Qwen/Qwen3-8B", 3)
    module = [installed / "python", "-m", "vllm_understudy", "--config", "profile.yaml"]
    with serving(module, elsewhere) as url:
        assert requests.get(f"{url}/admin/config", timeout=20).json()["max-num-seqs"] == 3


def test_gunicorn_serves_the_installed_module(installed: Path, elsewhere: Path) -> None:
    (elsewhere / "mine.yaml").write_text("max-num-seqs: 3\n")
    command = [installed / "gunicorn", "-c", "python:vllm_understudy.gunicorn_conf"]
    command += ["-e", "SIM_CONFIG=mine.yaml", "--no-control-socket", "vllm_understudy.wsgi:app"]
    with serving(command, elsewhere, BIND) as url:
        body = {"prompt": "Hello there", "max_tokens": 3, "stream": True}
        answer = requests.post(f"{url}/v1/completions", json=body, timeout=20)
        assert answer.text.count("data: ") == 4 and answer.text.endswith("data: [DONE]\n\n")
        assert (
            "Using worker: app.core.server.gunicorn.worker.Worker\n"
            in (elsewhere / "log").read_text()
        )
        (elsewhere / "mine.yaml").write_text("max-num-seqs: 4\n")
        os.kill(int((elsewhere / "pid").read_text()), signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE_S / 4
        while (
            '"max-num-seqs": 4' not in (elsewhere / "log").read_text()
        ):  # a hook of the module logs it
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_missing_extra_prints_a_one_line_error_with_the_install_command(
    installed: Path, elsewhere: Path
) -> None:
    extra = ": pip install 'vllm-understudy[{}]'\n"
    for words, message in {
        "--grpc": extra.format("grpc"),
        "generate --model tiny hello": extra.format("engine"),
        "fleet --png fleet.png": extra.format("fleet"),
    }.items():
        done = run(installed / "understudy", *words.split(), cwd=elsewhere)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.endswith(message)


def test_help_of_the_installed_package_shows_no_source_checkout_commands(
    installed: Path, elsewhere: Path
) -> None:
    for words in ((), ("serve",), ("record", "--proxy")):
        help_run = run(installed / "understudy", *words, "--help", cwd=elsewhere)
        assert help_run.returncode == 0
        assert not re.search(r"python -m|install -e|gunicorn wsgi", help_run.stdout)


def test_wheel_installs_no_other_top_level_package(installed: Path, elsewhere: Path) -> None:
    code = "import vllm_understudy, app, config; app.MINE"
    run_of_code = run(installed / "python", "-c", code, cwd=elsewhere)
    assert run_of_code.returncode == 0, run_of_code.stderr
    names = ("app", "config", "vllm_facts", "workbench", "wsgi", "understudy")
    code = f"import importlib.util as u, vllm_understudy; print([n for n in {names} if u.find_spec(n)])"
    assert run(installed / "python", "-P", "-c", code, cwd=elsewhere).stdout == "[]\n"


def test_installed_pytest_plugin_provides_the_fixture(installed: Path, elsewhere: Path) -> None:
    shutil.copy(CLIENT, elsewhere / "test_client.py")
    settings = "import pytest\n@pytest.fixture(scope='session')\ndef understudy_settings():\n"
    (elsewhere / "conftest.py").write_text(f"{settings}    return {{'max_model_len': 1234}}\n")
    options = ["--strict-markers", "-W", "error", "-p", "no:cacheprovider", "-v"]
    pytest_run = run(installed / "python", "-m", "pytest", *options, cwd=elsewhere)
    outcomes = dict(re.findall(r"::(\w+) (PASSED|FAILED|ERROR)", pytest_run.stdout))
    assert [name for name, outcome in outcomes.items() if outcome != "PASSED"] == [
        "test_that_fails_shows_the_journal"
    ], pytest_run.stdout
    assert len(outcomes) == 5
    assert (
        "requests to understudy" in pytest_run.stdout
        and "seed 7; 1 request, the" in pytest_run.stdout
    )


def test_project_written_by_init_passes_its_tests(installed: Path, tmp_path: Path) -> None:
    written = run(installed / "understudy", "init", "--js", cwd=tmp_path)
    assert (written.returncode, written.stderr) == (0, "")
    assert (tmp_path / "understudy" / "vllm-understudy" / "index.js").exists()
    assert not [path for path in tmp_path.rglob("*") if path.name in ("__pycache__", "README.md")]
    done = run(installed / "pytest", "-p", "no:cacheprovider", "understudy", cwd=tmp_path)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
