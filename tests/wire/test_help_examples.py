"""Each command line that a --help prints runs as printed, on a server of this test."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest
import requests

from app.core.cli import all_commands, main
from tests.forked_server import run_forked
from tests.running_server import ROOT, RunningServer, free_port, running_command, running_server
from tests.workbench.study.test_compare import PROFILE, write_truth
from workbench.study.command import run as run_study

EXAMPLES_HEADING = re.compile(r"(?m)^examples:\n((?:  .+\n)+)", re.IGNORECASE)
NOTE = re.compile(r"(?<=\S) {2,}[^ ].*$")
"""A remark behind an example, after two spaces."""
STUDY_COMMANDS = ("study take", "study compare", "study replay")
STARTS_SERVER = re.compile(r"understudy (run|serve|record --proxy)\b")
START_LIMIT_S = 60.0
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  selector: {matchLabels: {app: chat}}
  template:
    metadata: {labels: {app: chat}}
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args: [Qwen/Qwen3-8B, --max-model-len, "16384"]
        resources: {limits: {nvidia.com/gpu: 1}}
"""
TALKS = [{"id": "1", "conversations": [{"from": "human", "value": "Who are you?"}]}]
TALKS[0]["conversations"].append({"from": "gpt", "value": "A stand-in."})  # type: ignore[union-attr]
FIXTURES = {"fixtures": [{"match": {"userMessage": "Hello"}, "response": {"content": "Hi."}}]}

DASHBOARD = {"panels": [{"targets": [{"expr": "vllm:num_requests_running"}]}]}
CLIENT_TEST = """\
import os

import requests


def test_model_is_served():
    requests.get(f"{os.environ['OPENAI_BASE_URL']}/models", timeout=30).raise_for_status()
"""


def examples_of(text: str) -> list[str]:
    """Returns the examples of a help, each with its continued lines."""
    examples: list[str] = []
    for lines in EXAMPLES_HEADING.findall(text):
        continued = False
        for line in lines.splitlines():
            if continued:
                examples[-1] += f"\n{line}"
            else:
                examples.append(NOTE.sub("", line.strip()))
            continued = line.endswith("\\")
    return examples


def printed_examples() -> list[str]:
    """Returns the examples of all commands, each once."""
    examples: dict[str, None] = {}
    for name in ("", *all_commands(), *STUDY_COMMANDS):
        output = StringIO()
        with redirect_stdout(output), suppress(SystemExit):
            main([*name.split(), "--help"])
        examples |= dict.fromkeys(examples_of(output.getvalue()))
    return list(examples)


EXAMPLES = printed_examples()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The server at port 8000 of the examples."""
    with running_server("--journal", "1000", "--profile", PROFILE) as running:
        yield running


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a shell with the commands `understudy` and `pytest`, and a home of its own."""
    home = tmp_path_factory.mktemp("home")
    (home / ".config/fish/completions").mkdir(parents=True)
    program = home / "bin" / "understudy"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m app "$@"\n')
    program.chmod(0o755)
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("SIM_")}
    path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {
        **inherited,
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",  # without a network, its retries take longer than a request may
        "PATH": path,
        "PYTHONPATH": str(ROOT),
    }


class Inputs:
    """Makes the files that examples read."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._makers: Mapping[str, Callable[[Path], object]] = {
            "talks.json": lambda path: path.write_text(json.dumps(TALKS)),
            "fixtures.json": lambda path: path.write_text(json.dumps(FIXTURES)),
            "deployment.yaml": lambda path: path.write_text(DEPLOYMENT),
            "dashboard.json": lambda path: path.write_text(json.dumps(DASHBOARD)),
            "tests/": self._write_tests,
            "understudy/replies.yaml": lambda path: run_forked("init", str(path.parents[1])),
            "run.csv": self._record,
            "session.jsonl": self._record_session,
            "prod": self._make_study,
            "run.jsonl": self._replay,
        }

    def make(self, words: list[str], folder: Path) -> None:
        """Makes the files that a command line names and that are not its results."""
        for before, word in zip(["", *words], words, strict=False):
            if word in self._makers and before not in ("--out", "--output"):
                self._makers[word](folder / word)

    def _write_tests(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "test_client.py").write_text(CLIENT_TEST)

    def _record(self, path: Path) -> None:
        words = ["--rate", "4", "--seconds", "3", "--out", str(path)]
        done = run_forked("record", "--target", self._server.url, *words)
        assert done.returncode == 0, done.stderr

    def _record_session(self, path: Path) -> None:
        port = free_port()
        words = ["--target", self._server.url, "--out", str(path), "--port", str(port)]
        command = [sys.executable, "-m", "app", "record", "--proxy", *words]
        message = {"role": "user", "content": "Hello"}
        with running_command(command, port, {}) as proxy:
            url = f"{proxy.url}/v1/chat/completions"
            requests.post(url, json={"messages": [message]}, timeout=30).raise_for_status()

    def _make_study(self, path: Path) -> None:
        write_truth(path, (1.0, 1.0, 1.0))
        assert run_study(["compare", str(path), "--profile", PROFILE]) == 0

    def _replay(self, path: Path) -> None:
        study = path.with_name("replayed")
        self._make_study(study)
        words = ["--url", self._server.url, "--speed", "100", "--out", str(path)]
        done = run_forked("study", "replay", str(study), *words)
        assert done.returncode == 0, done.stderr


def test_help_of_each_command_shows_an_example_before_its_flags() -> None:
    assert len(EXAMPLES) >= 30
    commands = {" ".join(example.split()[1:2]) for example in EXAMPLES}
    # `launch` is `serve`, `plugins` has no flags, and `generate` and `llm` need torch and a model.
    assert {*(name.split()[0] for name in all_commands())} - commands == {
        *("launch", "plugins", "generate", "llm")
    }


@pytest.mark.curl
@pytest.mark.timeout(240)
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_as_printed(
    example: str, server: RunningServer, environment: dict[str, str], tmp_path: Path
) -> None:
    Inputs(server).make(shlex.split(example), tmp_path)
    port = free_port()
    # A speed or a time that a reader waits for says nothing more to a test.
    command = re.sub(r"--speed \d+", "--speed 100", example)
    command = re.sub(r"--for \d+s", "--for 4s", command)
    command = command.replace("localhost:8000", f"localhost:{server.port}")
    command = command.replace("--port 8001", f"--port {port}")
    if not STARTS_SERVER.match(example):
        with steady_requests(server.url):  # for a measurement
            assert_success(command, environment, tmp_path)
        return
    if "record --proxy" in command:
        command += f" --port {port}"
    else:
        environment = {**environment, "SIM_PORT": str(port)}
    assert_serves(command, port, environment, tmp_path)


@contextmanager
def steady_requests(url: str) -> Iterator[None]:
    """Sends two requests per second."""
    ended = threading.Event()

    def send() -> None:
        body = {"messages": [{"role": "user", "content": "Hello"}]}
        while not ended.wait(0.5):
            requests.post(f"{url}/v1/chat/completions", json=body, timeout=30)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def assert_success(command: str, environment: dict[str, str], folder: Path) -> None:
    """Runs a command line to its end."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def assert_serves(command: str, port: int, environment: dict[str, str], folder: Path) -> None:
    """Runs a command line that serves requests until it is stopped."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not is_healthy(port):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            assert process.stdout is not None
            print(process.stdout.read())


def is_healthy(port: int) -> bool:
    """Returns whether a server answers."""
    try:
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=5).ok
    except requests.ConnectionError:
        return False
