"""The command, with stand-ins and clients as processes."""

from __future__ import annotations

import json
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


def write_session(path: Path, *, is_cut: bool = False) -> None:
    """Writes a recording of a chat; `is_cut` adds a part of a second one."""
    session = ROOT / "examples" / "sessions" / "opencode.jsonl"
    head, chat, *_ = session.read_text().splitlines()
    path.write_text(f"{head}\n{chat}\n" + (chat[:-100] if is_cut else ""))


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


HABITS = {
    "tool-calls": (("0.23", "0.24"), "client.py:21", "`tool_calls` is gone from the answers"),
    "usage-chunk": (("0.20", "0.21"), "client.py:24", "have `usage: null`"),
    "error-body": (("0.10.0", "0.10.2"), "client.py:25", "`message` is gone from the errors"),
    "guided-json": (("0.11", "0.12"), "client.py:16", "ignores the field `guided_json`"),
    "thoughts": (("0.15", "0.16"), "client.py:9", "`reasoning_content` is gone from the answers"),
    "messages": (
        ("0.16", "0.17"),
        "client.py:12",
        "'ThinkingBlock' object has no attribute 'text'",
    ),
    "context-length": (
        ("0.17", "0.18"),
        "client.py:10",
        "0.18: The error of a prompt that is too long",
    ),
    "browser": (("0.31", "0.32"), "client.py:21", "the header access-control-allow-origin is gone"),
    "embeddings": (("0.11", "0.20"), "deployment.sh:1", "replaced --task by --runner"),
}
"""Habits of clients: the releases around the one that broke them, and the first break."""


@pytest.mark.parametrize("habit", HABITS)
def test_habit_that_a_release_broke_is_named_first_until_it_is_repaired(habit: str) -> None:
    (old, new), place, message = HABITS[habit]
    for state, expected in (("before", 1), ("after", 0)):
        folder = EXAMPLE / habit / state
        files = [path.name for path in folder.glob("deployment.sh")]
        words = ("--from", old, "--to", new, "--format", "json", *files)
        status, text, log = rehearse(folder, *words, "--", sys.executable, "client.py")
        report = json.loads(text)
        assert status == expected, log
        if state == "after":
            assert report["answer"] == "Ready to upgrade."
            continue
        first = report["breaks"][0]
        assert f"{first['file']}:{first['line']}" == place
        assert message in f"{first['message']} {first['why']}"


SIMPLE_CLIENT = """
import json, os, urllib.request

body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json"},
)
message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
print(len(message["content"]))
"""
ASSUMED = "No file starts a server: Qwen/Qwen3-8B is assumed, under every name, "


def test_simplest_client_is_ready(tmp_path: Path) -> None:
    """It reads the content of a short reply, which a model that thinks does not reach."""
    (tmp_path / "client.py").write_text(SIMPLE_CLIENT)
    flags = ("--from", "0.27", "--to", "0.33", "--format", "json")
    status, text, log = rehearse(tmp_path, *flags, "--", sys.executable, "client.py")
    report = json.loads(text)
    assert (status, report["answer"]) == (0, "Ready to upgrade."), log
    assert ASSUMED + "without thoughts, as the client names no field of them." in report["unseen"]


def test_client_that_reads_thoughts_gets_them(tmp_path: Path) -> None:
    client = SIMPLE_CLIENT.replace('message["content"]', 'message["reasoning_content"]')
    client = client.replace('"max_tokens": 20', '"max_tokens": 400')  # the thoughts end
    (tmp_path / "client.py").write_text(client)
    flags = ("--from", "0.15", "--to", "0.20", "--format", "json")
    status, text, log = rehearse(tmp_path, *flags, "--", sys.executable, "client.py")
    report = json.loads(text)
    assert status == 1, log
    assert "reasoning_content" in report["breaks"][0]["message"]
    assert ASSUMED + "with thoughts, because of client.py:11." in report["unseen"]


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
    write_session(tmp_path / "session.jsonl")
    flags = ("--from", "0.23", "--to", "0.24", "--base-url-variable", "OUR_URL", "--format", "json")
    status, text, log = rehearse(tmp_path, *flags, "--recording", "session.jsonl", "--", *command)
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
    write_session(tmp_path / "session.jsonl", is_cut=True)
    status, text, log = rehearse(tmp_path, "--from", "0.32", "--to", "0.33", "session.jsonl")
    assert (status, text.splitlines()[0]) == (0, "Ready to upgrade."), log
    assert log.count("is cut off, and left out") == 1


MODULE_BESIDE = """
import json, os, urllib.request

def chat(**fields):
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body | fields).encode(),
        {"Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))
"""
HALF_FAILS = """
import os
import pytest
import client

URL = os.environ["OPENAI_BASE_URL"]

@pytest.mark.parametrize("url", [URL])
def test_url(url): assert client.chat()["object"]
def test_choices(): assert client.chat()["choices"]
def test_calls():
    assert list(client.chat()["choices"][0]["message"]["tool_calls"]) == []
def test_key(): client.chat()["no such key"]
@pytest.mark.skip(reason="no GPU")
def test_skipped(): pass
@pytest.fixture
def broken(): raise RuntimeError("no database")
def test_setup(broken): pass
"""


def client_folder(folder: Path, tests: str) -> Path:
    """Writes a client as people lay it out: a module beside the programs that import it."""
    (folder / "client.py").write_text(MODULE_BESIDE)
    (folder / "run.py").write_text("import client\n\nclient.chat()\n")
    (folder / "test_client.py").write_text(tests)
    return folder


@pytest.mark.parametrize("options", [(), ("--junitxml=results.xml",)])
def test_tests_that_fail_with_both_versions_are_not_known(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder = client_folder(tmp_path, HALF_FAILS)
    pytest_words = (*("-q", "-p", "no:cacheprovider", "--deselect", "test_client.py::test_calls"),)
    words = ("--from", "0.23", "--to", "0.24", "--", sys.executable, "-m", "pytest")
    status, text, log = rehearse(folder, *words, *pytest_words, *options)
    lines = text.splitlines()
    assert (status, lines[0]) == (2, "Not known for 3 of 5 tests."), log
    start = lines.index("Not known for 3 of 5 tests:") + 1
    named = [line.strip() for line in lines[start : start + 3]]
    assert named == [
        "test_client.test_key: fails with both versions: KeyError: 'no such key'",
        "test_client.test_skipped: is skipped with both versions: no GPU",
        "test_client.test_setup: fails with both versions: "
        'failed on setup with "RuntimeError: no database"',
    ]


def test_cause_of_a_failing_test_is_a_break_with_its_line(tmp_path: Path) -> None:
    folder = client_folder(tmp_path, HALF_FAILS)
    words = ("--from", "0.23", "--to", "0.24", "--format", "json", "--", sys.executable, "-m")
    pytest_words = ("pytest", "-q", "-p", "no:cacheprovider", "-k", "calls", "--junitxml=a.xml")
    status, text, log = rehearse(folder, *words, *pytest_words)
    report: Any = json.loads(text)
    assert status == 1, log
    [item] = report["breaks"]
    line = HALF_FAILS.splitlines().index(
        '    assert list(client.chat()["choices"][0]["message"]["tool_calls"]) == []'
    )
    assert (item["file"], item["line"]) == ("test_client.py", line + 1)
    assert "has no `tool_calls`" in item["why"]
    assert [item["file"] for item in report["consequences"]] == ["test_client.test_calls"]
    assert report["changes"] == []


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("python run.py", "Ready to upgrade."),
        ("true", "Not known: the client has sent no request to vLLM 0.32.0."),
        (
            "test -e marker || python run.py; touch marker",
            "Not known: the client has sent no request to vLLM 0.33.0.",
        ),
        (
            "python run.py; test -e a.xml || echo '<testsuite><testcase name=\"a\"/></testsuite>' "
            "> a.xml # --junitxml=a.xml",
            "Not known: a.xml was not written with vLLM 0.33.0.",
        ),
        (
            "python run.py; echo '<testsuites/>' > a.xml # --junitxml=a.xml",
            "Not known: a.xml has no test with vLLM 0.32.0.",
        ),
        ("python -c 'import missing'", "Not known: the command fails with vLLM 0.32.0, too: "),
        (
            'python -c "import client, os, urllib.request as r; r.urlopen('
            "os.environ['OPENAI_BASE_URL'] + '/models'); client.chat(temperature=-5)\" || true",
            "Not known: vLLM 0.32.0 rejects each request to POST /v1/chat/completions: 400 ",
        ),
    ],
)
def test_answer_is_ready_only_if_the_client_ran(script: str, answer: str, tmp_path: Path) -> None:
    folder = client_folder(tmp_path, "")
    script = script.replace("python ", f"{sys.executable} ")
    words = ("--from", "0.32", "--to", "0.33", "--", "sh", "-c", script)
    status, text, log = rehearse(folder, *words)
    assert text.splitlines()[0].startswith(answer), log
    assert status == (0 if answer.startswith("Ready") else 2)


@pytest.mark.parametrize("own", [{}, {"PYTHONPATH": "ours:theirs", "PYTHONSAFEPATH": "1"}])
def test_command_has_the_variables_of_its_caller(tmp_path: Path, own: dict[str, str]) -> None:
    (tmp_path / "show.py").write_text(
        "import json, os\nopen('environ', 'w').write(json.dumps(dict(os.environ)))\n"
    )
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    start += "from vllm_understudy.__main__ import main; main()"
    words = ("rehearse", "--from", "0.32", "--to", "0.33", "--", sys.executable, "show.py")
    subprocess.run(
        [sys.executable, "-c", start, *words],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "NO_PROXY": "corp.example", "PYTEST_ADDOPTS": "-x", **own},
        capture_output=True,
        check=False,
    )
    environ = json.loads((tmp_path / "environ").read_text())
    ours = {"OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "UNDERSTUDY_URL"}
    ours |= {"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PYTEST_ADDOPTS"}
    assert environ.keys() >= ours
    assert environ["PYTEST_ADDOPTS"].startswith("-x --junitxml=")
    others = {name: value for name, value in environ.items() if name not in ours}
    others.pop("LC_CTYPE", None)  # of the interpreter itself
    without_proxy = {"NO_PROXY": "corp.example,127.0.0.1", "no_proxy": "127.0.0.1"}
    assert others == {"PATH": "/usr/bin:/bin", **without_proxy, **own}
