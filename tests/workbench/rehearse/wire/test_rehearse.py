"""The command, with stand-ins and clients as processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.running_server import ROOT

EXAMPLE = ROOT / "examples" / "upgrade"
AGENT = (sys.executable, "agent.py")
FILES = ("deployment.yaml", "dashboard.json", "scaler.yaml")
FLAGS = ("--from", "0.11", "--to", "0.20", "--format", "json")


def rehearse(folder: Path, *words: str) -> tuple[int, str, str]:
    """Runs the command in a folder; returns its exit status, its report, and its messages."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm_understudy", "rehearse", *words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_example_breaks_as_its_page_says() -> None:
    status, text, log = rehearse(EXAMPLE / "before", *FLAGS, *FILES, "--", *AGENT)
    report: Any = json.loads(text)
    assert (status, report["answer"]) == (1, "Not ready: 5 things break."), log
    assert [f"{item['file']}:{item['line']}" for item in report["breaks"]] == [
        "agent.py:34",
        "agent.py:32",
        "deployment.yaml:13",
        "dashboard.json:7",
        "scaler.yaml:10",
    ]


def test_repaired_example_is_ready() -> None:
    status, text, log = rehearse(EXAMPLE / "after", *FLAGS, *FILES, "--", *AGENT)
    assert (status, json.loads(text)["answer"]) == (0, "Ready to upgrade."), log


def test_recording_and_tests_are_compared(tmp_path: Path) -> None:
    (tmp_path / "test_client.py").write_text(
        "import json, os, urllib.request\n\n\n"
        "def test_hot():\n"
        "    body = {'messages': [{'role': 'user', 'content': 'Hi'}], 'temperature': 3}\n"
        "    body |= {'model': os.environ['OUR_URL'][:4], 'max_tokens': 2}\n"
        "    request = urllib.request.Request(os.environ['OUR_URL'] + '/chat/completions',\n"
        "        json.dumps(body).encode(), {'Content-Type': 'application/json'})\n"
        "    assert urllib.request.urlopen(request).status == 200\n\n\n"
        "def test_nothing():\n    assert True\n"
    )
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=a.xml")
    shutil.copy(ROOT / "examples" / "sessions" / "codex.jsonl", tmp_path)
    flags = ("--from", "0.23", "--to", "0.24", "--base-url-variable", "OUR_URL", "--format", "json")
    status, text, log = rehearse(tmp_path, *flags, "--recording", "codex.jsonl", "--", *command)
    report: Any = json.loads(text)
    assert status == 1, log
    assert [item["kind"] for item in report["breaks"]] == ["request"], report
    assert "temperature" in report["breaks"][0]["message"]
    assert [item["file"] for item in report["consequences"]] == ["test_client.test_hot"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "0.9", "--to", "0.33", "a.py"), "--from 0.9"),
        (("--from", "0.27", "--to", "0.33"), "rehearse needs files"),
        (("--from", "0.27", "--to", "0.33", "missing.yaml", "--", "true"), "missing.yaml"),
        (("--from", "0.27", "--to", "0.33", "--", "/no/such/program"), "/no/such/program"),
        (("--from", "0.27", "--to", "0.33", "--script", "no.yaml", "--", "true"), "no.yaml"),
        (("--from", "0.27", "--to", "0.33", "--base-url-variable", "A=B", "--", "true"), "'A=B'"),
    ],
)
def test_wrong_command_line_is_one_line_and_status_2(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    status, text, log = rehearse(tmp_path, *words)
    assert (status, text) == (2, "")
    [line] = [line for line in log.splitlines() if not line.startswith("---")]
    assert line.startswith("error: ")
    assert message in line


def test_stop_by_a_signal_ends_the_command_and_the_stand_ins(tmp_path: Path) -> None:
    script = "import os, time; print(os.environ['UNDERSTUDY_URL'], flush=True); time.sleep(50)"
    words = ("--from", "0.32", "--to", "0.33", "--", sys.executable, "-c", script)
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_understudy", "rehearse", *words],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    url = ""
    while not url.startswith("http"):
        url = process.stderr.readline()
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    _, log = process.communicate(timeout=30)
    assert process.returncode == 2
    assert log == "error: interrupted; nothing was compared\n"
    assert len(children) > 2
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_children_that_the_command_leaves_behind_are_ended(tmp_path: Path) -> None:
    command = ("sh", "-c", "sleep 99 & echo $! >> children")
    rehearse(tmp_path, "--from", "0.32", "--to", "0.33", "--", *command)
    children = [int(line) for line in (tmp_path / "children").read_text().split()]
    assert len(children) == 2
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [child for child in children if psutil.pid_exists(child)] == []


def test_long_output_of_the_command_is_shown_whole(tmp_path: Path) -> None:
    script = "import sys; sys.stdout.buffer.write('aé'.encode() * 100_000)"
    words = ("--from", "0.32", "--to", "0.33", "--", sys.executable, "-c", script)
    status, _, log = rehearse(tmp_path, *words)
    assert (status, log.count("aé"), "\ufffd" in log) == (2, 200_000, False)


def test_client_that_clears_the_journal_is_compared(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(
        "import os, urllib.request\n"
        "url = os.environ['UNDERSTUDY_URL']\n"
        'body = b\'{"prompt": "Hi", "max_tokens": 2}\'\n'
        "kind = {'Content-Type': 'application/json'}\n"
        "for path, method, data in [('/v1/completions', 'POST', body),\n"
        "                           ('/admin/journal', 'DELETE', None)]:\n"
        "    request = urllib.request.Request(url + path, data, kind, method=method)\n"
        "    assert urllib.request.urlopen(request).status == 200\n"
    )
    words = ("--from", "0.32", "--to", "0.33", "--format", "json", "--")
    status, text, log = rehearse(tmp_path, *words, sys.executable, "client.py")
    assert status == 0, log
    assert "Some requests to vLLM 0.32.0 are not in its journal." in json.loads(text)["unseen"]


def test_files_are_also_pipes() -> None:
    path = EXAMPLE / "before" / "deployment.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "vllm_understudy", "rehearse", *FLAGS, "-"],
        cwd=ROOT,
        input=path.read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    report: Any = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert [item["fix"] for item in report["breaks"]] == ["remove --swap-space"]


def test_recording_with_a_cut_line_is_sent_with_one_warning(tmp_path: Path) -> None:
    recording = (ROOT / "examples" / "sessions" / "codex.jsonl").read_bytes()
    (tmp_path / "session.jsonl").write_bytes(recording[:-1000])
    status, text, log = rehearse(tmp_path, "--from", "0.32", "--to", "0.33", "session.jsonl")
    assert (status, text.splitlines()[0]) == (0, "Ready to upgrade."), log
    assert log.count("is cut off, and left out") == 1
