"""The recorded sessions of examples/sessions: real agents do their task again, and differently."""

import subprocess
import sys
from pathlib import Path

import pytest
import requests

from app.extensions.recording.lines import recorded
from tests.conformance.agent_pages import (
    AGENTS,
    CORRECT,
    SERVER_FLAGS,
    SESSIONS,
    TASK_FILE,
    make_folder,
    run_agent,
    section,
)
from tests.running_server import ROOT, running_server

pytestmark = pytest.mark.timeout(180)  # beside a busy machine
JSON = {"Content-Type": "application/json"}
REPLAYED = ("codex", "claude")
"""Agents that also replay their session here; opencode takes many seconds for each start."""
REPLAY_FLAGS = ("--replay-by", "turn", "--replay-miss", "not-found")


@pytest.mark.coding_agents
@pytest.mark.parametrize("name", REPLAYED)
def test_coding_agent_repeats_its_task_from_the_recorded_session(name: str, tmp_path: Path) -> None:
    session = SESSIONS / f"{name}.jsonl"
    with running_server("--replay", str(session), *REPLAY_FLAGS, *SERVER_FLAGS) as server:
        page_section = section(AGENTS[name])
        make_folder(page_section, tmp_path, server.port)
        output = run_agent(name, page_section, tmp_path, server.port)
        report = requests.get(f"{server.url}/admin/replay", timeout=10).json()
        log = server.log()
    assert (tmp_path / TASK_FILE).read_text() == CORRECT
    assert "The greeting is spelled correctly now." in output
    assert (report["missed"], len(report["answers"])) == (0, report["exchanges"])
    assert "was recorded with" not in log


@pytest.mark.parametrize("name", ["codex", "opencode", "claude"])
def test_each_request_of_a_recorded_session_gets_its_response_by_turn(name: str) -> None:
    session = SESSIONS / f"{name}.jsonl"
    exchanges = [exchange for _, exchange in recorded(str(session))]
    with running_server("--replay", str(session), *REPLAY_FLAGS, *SERVER_FLAGS) as server:
        for exchange in exchanges:
            body = str(exchange.request.body).replace('"content":""', '"content":"another text"')
            url = server.url + exchange.request.target
            answer = requests.post(url, data=body.encode(), headers=JSON, timeout=30)
            assert answer.content == exchange.answer.body()


@pytest.mark.coding_agents
def test_forked_session_continues_with_a_script_from_the_chosen_turn(tmp_path: Path) -> None:
    fork = tmp_path / "fork.jsonl"
    script = tmp_path / "script.yaml"
    script.write_text("rules:\n- then: {text: I do not run it.}\n")
    command = [sys.executable, "-m", "app", "fork", str(SESSIONS / "codex.jsonl")]
    subprocess.run([*command, "--turns", "1", "--out", str(fork)], cwd=ROOT, check=True, timeout=30)
    page_section = section(AGENTS["codex"])
    with (
        running_server("--script", str(script), *SERVER_FLAGS) as model,
        running_server(
            *("--replay", str(fork), "--replay-by", "turn", "--replay-miss", "record"),
            *("--target", model.url, *SERVER_FLAGS),
        ) as server,
    ):
        make_folder(page_section, tmp_path, server.port)
        output = run_agent("codex", page_section, tmp_path, server.port)
    assert (tmp_path / TASK_FILE).read_text() == CORRECT
    assert "I do not run it." in output
