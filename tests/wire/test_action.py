"""The GitHub Action of action.yml: its steps run here as on a runner, with the checkout's server."""

import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests
import yaml

from tests.running_server import ROOT, free_port

pytestmark = pytest.mark.curl  # as on a runner
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"]}
MODULES = (
    *("venv", "pip", "ensurepip/__init__", "json", "sitecustomize", "usercustomize", "runpy"),
    *("app/__init__", "config/__init__", "vllm_understudy/__init__", "gunicorn", "os", "stranger"),
)
"""Modules of a pull request that hide those that the steps import."""


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """Variables of a runner on which the install step has run: the program is the checkout's."""
    programs = tmp_path / "understudy" / "bin"
    programs.mkdir(parents=True)
    program = programs / "understudy"
    program.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{ROOT}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f'exec "{sys.executable}" -P -m vllm_understudy "$@"\n'
    )
    program.chmod(0o755)
    outputs = tmp_path / "outputs"
    outputs.touch()
    variables = {"RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(outputs)}
    return {**os.environ, **variables}


@pytest.fixture
def hostile_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, whose modules leave a mark when they run, and are on the import path."""
    folder = tmp_path / "checkout"
    for module in MODULES:
        path = folder / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((".", str(folder), "")))
    return folder


def wheel(folder: Path) -> Path:
    """A package for pip without the internet."""
    path = folder / "small-1-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: small\nVersion: 1\n"
    format = "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("small.py", "")
        archive.writestr("small-1.dist-info/METADATA", metadata)
        archive.writestr("small-1.dist-info/WHEEL", format)
        archive.writestr("small-1.dist-info/RECORD", "")
    return path


def variables_of(step: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """The variables of a step: each is one input, given or its default."""
    values = {}
    for name, expression in STEPS[step]["env"].items():
        source = expression.removeprefix("${{ inputs.").removesuffix(" }}")
        values[name] = inputs.get(source, ACTION["inputs"][source]["default"])
    return values


@contextmanager
def step(
    name: str, environment: Mapping[str, str], **inputs: str
) -> Iterator[subprocess.CompletedProcess[str]]:
    """Runs a step; at the end of the block its processes end, as at the end of a job."""
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]]
    output = Path(environment["RUNNER_TEMP"]) / f"{name}.out"
    with output.open("w") as file:
        process = subprocess.Popen(
            words,
            env={**environment, **variables_of(name, inputs)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(50)
            yield subprocess.CompletedProcess(words, status, output.read_text())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_server_started_by_the_action_serves_later_steps(runner: dict[str, str]) -> None:
    port = str(free_port())
    inputs = {"port": port, "arguments": "--max-num-seqs 3\n--seed 5"}
    with step("start", runner, **inputs) as done:
        assert done.returncode == 0, done.stdout
        lines = Path(runner["GITHUB_OUTPUT"]).read_text().splitlines()
        outputs = dict(line.split("=", 1) for line in lines)
        url = f"http://127.0.0.1:{port}"
        assert outputs["url"] == url and outputs["base-url"] == f"{url}/v1"
        assert sorted(outputs) == sorted(ACTION["outputs"])
        settings = requests.get(f"{url}/admin/config", timeout=10).json()
        assert (settings["max-num-seqs"], settings["seed"], settings["journal"]) == (3, 5, 1000)
        assert "Listening at" in Path(outputs["log"]).read_text()


def test_check_of_the_action_marks_the_lines_of_files(
    runner: dict[str, str], tmp_path: Path
) -> None:
    paths = (tmp_path / "run.sh", tmp_path / "other.yaml")
    paths[0].write_text("vllm serve Qwen/Qwen3-8B --max-num-sqs 8\n")
    paths[1].write_text("kind: ConfigMap\n")
    files = "\n".join(map(str, paths))
    with step("check", runner, check=files, arguments="--device l4") as done:
        assert done.returncode == 1
        assert f"::error file={paths[0]},line=1,col=26::O101" in done.stdout
    with step("check", runner, check=str(paths[1]), arguments="--skip-others") as done:
        assert done.returncode == 0, done.stdout


def test_invalid_argument_fails_the_step_with_the_log(runner: dict[str, str]) -> None:
    inputs = {"port": str(free_port()), "arguments": "--max-num-sqs 3"}
    with step("start", runner, **inputs) as done:
        assert done.returncode == 1
        assert "::error title=Understudy::the server did not start\n" in done.stdout
        assert "unknown flag --max-num-sqs; did you mean --max-num-seqs?" in done.stdout
        assert Path(runner["GITHUB_OUTPUT"]).read_text() == ""


def test_non_numeric_wait_seconds_input_fails_the_step(
    runner: dict[str, str],
) -> None:
    with step("start", runner, **{"wait-seconds": "soon"}) as done:
        assert done.returncode == 1
        assert "wait-seconds must be a whole number, got soon" in done.stdout
        assert "unbound variable" not in done.stdout


@pytest.mark.parametrize("port", ["", "0", "65536", "080", "eighty", "8000;id", "1\n::warning::x"])
def test_port_that_is_not_a_port_number_fails_the_step(runner: dict[str, str], port: str) -> None:
    with step("start", runner, port=port) as done:
        assert done.returncode == 1
        message = "::error title=Understudy::port must be a whole number from 1 to 65535, got "
        assert done.stdout.startswith(message)
        assert len(done.stdout.splitlines()) == 1
    assert not (Path(runner["RUNNER_TEMP"]) / "understudy.log").read_text()


def test_wait_seconds_with_a_leading_zero_is_a_decimal_number(runner: dict[str, str]) -> None:
    with step("start", runner, port=str(free_port()), **{"wait-seconds": "08"}) as done:
        assert done.returncode == 0, done.stdout


def test_step_fails_if_another_server_uses_the_port(runner: dict[str, str]) -> None:
    port = str(free_port())
    with step("start", runner, port=port) as first:
        assert first.returncode == 0, first.stdout
        with step("start", runner, port=port) as second:
            assert second.returncode == 1
            assert f"another server answers at http://127.0.0.1:{port}\n" in second.stdout


def test_silent_listener_on_the_port_fails_the_step(runner: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        with step("start", runner, port=port) as done:
            assert done.returncode == 1
            assert "::error title=Understudy::the server did not start\n" in done.stdout


def test_argument_value_is_not_executed_by_the_shell(
    runner: dict[str, str], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    inputs = {"port": str(free_port()), "arguments": f"--seed $(touch${{IFS}}{mark}) `date`"}
    with step("start", runner, **inputs) as done:
        assert done.returncode == 1
        assert not mark.exists()


def test_error_for_an_outdated_python_names_the_remedy(runner: dict[str, str]) -> None:
    old = Path(runner["RUNNER_TEMP"]) / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    with step("install", runner, python=str(old)) as done:
        assert done.returncode == 1
        assert "add actions/setup-python" in done.stdout


def test_action_inputs_reach_the_scripts_only_as_variables() -> None:
    for step in STEPS.values():
        assert "${{" not in step["run"]
    used = {expression for step in STEPS.values() for expression in step["env"].values()}
    assert used == {f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]}


def commit(folder: Path, tag: str) -> None:
    """Commits a manifest with an image of this tag."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "vllm"},
        "spec": {
            "containers": [
                {
                    "name": "vllm",
                    "image": f"vllm/vllm-openai:{tag}",
                    "args": ["--model", "Qwen/Qwen3-8B", "--swap-space", "4"],
                }
            ]
        },
    }
    (folder / "vllm.yaml").write_text(yaml.safe_dump(manifest))
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder))
    subprocess.run((*git, "init", "--quiet"), check=True)
    subprocess.run((*git, "add", "."), check=True)
    subprocess.run((*git, "commit", "--quiet", "--message", tag), check=True)


def test_rehearsal_of_the_action_compares_the_tags_of_a_pull_request(
    runner: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    monkeypatch.chdir(folder)
    commit(folder, "v0.17.1")
    commit(folder, "v0.20.2")
    with step("rehearse", runner, rehearse="vllm.yaml") as done:
        assert done.returncode == 1, done.stdout
        lines = done.stdout.splitlines()
        assert lines[0] == "Not ready: 1 thing breaks."
        assert lines[1].startswith("::error file=vllm.yaml,line=10,")
        assert "vLLM 0.18 removed --swap-space" in lines[1]
    with step("rehearse", runner, rehearse="vllm.yaml", **{"from": "0.18", "to": "0.18"}) as done:
        assert done.returncode == 0, done.stdout
        assert done.stdout == "The version of vLLM stays 0.18.\n"


def test_installation_runs_no_module_of_the_checkout(
    hostile_checkout: Path, tmp_path: Path
) -> None:
    variables = {"RUNNER_TEMP": str(tmp_path), "PIP_NO_INDEX": "1"}
    package = str(wheel(tmp_path))
    with step(
        "install", {**os.environ, **variables}, package=package, python=sys.executable
    ) as done:
        assert done.returncode == 0, done.stdout
    assert not (tmp_path / "ran").exists()
    assert list((tmp_path / "understudy").glob("lib/*/site-packages/small.py"))


def test_check_and_rehearsal_run_no_module_of_the_checkout(
    hostile_checkout: Path, runner: dict[str, str], tmp_path: Path
) -> None:
    options = "--middleware stranger.mw --tool-parser-plugin ./stranger.py"
    Path("run.sh").write_text(f"vllm serve Qwen/Qwen3-8B {options}\n")
    codex = ROOT / "examples" / "sessions" / "codex.jsonl"
    with step("check", runner, check="run.sh") as done:
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("F504") == 2
    versions = {"from": "0.32", "to": "0.33", "arguments": f"--recording {codex}"}
    with step("rehearse", runner, rehearse="run.sh", **versions) as done:
        assert done.returncode == 2, done.stdout
        assert "Not known: the stand-ins lack --middleware" in done.stdout
    assert not (tmp_path / "ran").exists()


def test_only_the_command_of_a_rehearsal_gets_the_import_path_of_the_job(
    hostile_checkout: Path, runner: dict[str, str], tmp_path: Path
) -> None:
    Path("run.sh").write_text("vllm serve Qwen/Qwen3-8B\n")
    command = 'curl --silent --output /dev/null "$OPENAI_BASE_URL/models"; echo "$PYTHONPATH"'
    inputs = {"rehearse": "run.sh", "from": "0.32", "to": "0.33", "command": command}
    with step("rehearse", runner, **inputs) as done:
        assert done.returncode == 0, done.stdout
        assert done.stdout.splitlines().count(os.environ["PYTHONPATH"]) == 2
    assert not (tmp_path / "ran").exists()
