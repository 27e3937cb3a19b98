"""The first answer of a new user: README's command as printed, and other first messages."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import requests

from tests.running_server import ROOT, RunningServer, running_server

README = (ROOT / "README.md").read_text("utf-8")
FIRST_CURL = re.search(r"```console\n\$ (curl .*(?:\\\n.*)*)\n(.*)\n```", README)
"""The first block with curl: the command, and the line that it prints."""
COMMANDS = re.findall(r"```console\n\$ understudy ((?:.*\\\n)*.*)\n((?:[^$`].*\n)+)```", README)
"""Commands with the lines that they print."""
SENTENCES = re.compile(r"[A-Z][A-Za-z0-9 ,;:'-]+[.!?]( [A-Z][A-Za-z0-9 ,;:'-]+[.!?])*")
"""One or more English sentences, and nothing behind the last."""
FIRST_MESSAGES = (
    *("Hello!", "Hi", "What is the capital of France?", "Tell me a joke.", "¿Hablas español?"),
    *(
        "Write a haiku about rain.",
        "今日は",
        "2 + 2",
        "Summarize the plot of Hamlet in detail.",
        "test",
    ),
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server without a seed of its own, like that of a new user."""
    with running_server(env={"SIM_SEED": ""}) as running:
        yield running


def chat(content: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}], **fields}


@pytest.mark.curl
def test_first_readme_command_prints_the_documented_line(server: RunningServer) -> None:
    assert FIRST_CURL is not None
    command, printed = FIRST_CURL.groups()
    assert "localhost:8000" in command and '"seed"' in command and "max_tokens" not in command
    command_here = command.replace("localhost:8000", f"127.0.0.1:{server.port}")
    shell = subprocess.run(["bash", "-c", command_here], capture_output=True, text=True, timeout=30)
    assert (shell.returncode, shell.stdout) == (0, printed + "\n")
    assert SENTENCES.fullmatch(json.loads(f"{{{printed}}}")["content"])


@pytest.mark.parametrize(("command", "printed"), COMMANDS)
def test_readme_commands_print_the_documented_lines(command: str, printed: str) -> None:
    shell = f'understudy() {{ "$PYTHON" -m app "$@"; }}; understudy {command}'
    done = subprocess.run(
        ["bash", "-c", shell],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stdout == printed, done.stderr


def test_readme_shows_a_check_and_a_plan() -> None:
    assert [command.split()[0] for command, _ in COMMANDS] == ["check", "plan"]


def test_opening_messages_receive_varied_replies_in_complete_sentences(
    server: RunningServer,
) -> None:
    answers = []
    for content in FIRST_MESSAGES:
        url = f"{server.url}/v1/chat/completions"
        [choice] = requests.post(url, json=chat(content), timeout=30).json()["choices"]
        assert choice["finish_reason"] == "stop"
        assert SENTENCES.fullmatch(choice["message"]["content"])
        answers.append(choice["message"]["content"])
    assert len(set(answers)) > 5


def test_streamed_chat_and_responses_api_return_complete_sentences(server: RunningServer) -> None:
    body = chat("Hello!", seed=42)
    whole = requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=30).json()
    text = ""
    with requests.post(
        f"{server.url}/v1/chat/completions", json={**body, "stream": True}, stream=True, timeout=30
    ) as stream:
        for line in stream.iter_lines(decode_unicode=True):
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    assert text == whole["choices"][0]["message"]["content"]
    response = requests.post(
        f"{server.url}/v1/responses", json={"input": "Hello!"}, timeout=30
    ).json()
    assert response["status"] == "completed"
    assert SENTENCES.fullmatch(response["output"][0]["content"][0]["text"])


@pytest.mark.parametrize("family", ["chat/completions", "completions", "messages"])
def test_truncated_reply_starts_like_an_english_sentence(
    family: str, server: RunningServer
) -> None:
    fields = {"max_tokens": 8, "model": "understudy-tiny"}
    body = {"prompt": "Hello!", **fields} if family == "completions" else chat("Hello!", **fields)
    for _ in range(20):
        answer = requests.post(f"{server.url}/v1/{family}", json=body, timeout=30).json()
        if family == "messages":
            text = answer["content"][0]["text"]
        elif family == "completions":
            text = answer["choices"][0]["text"]
        else:
            text = answer["choices"][0]["message"]["content"]
        assert re.match(r"[A-Z][a-z]*\b", text) and text.isascii()
