"""Recorded conversations as replies, built by our own tool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.engine.dataset.catalogue import text_hash
from tests.dataset.files import make_file
from tests.running_server import ROOT
from tests.surface.conftest import MODEL, Client, served

ASKED, ANSWERED = "What colour is the sky?", "It is blue at noon and red in the evening."
LATER, ANSWERED_LATER = "And at night?", "Black, with stars."


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    turns = [("human", ASKED), ("gpt", ANSWERED), ("human", LATER), ("gpt", ANSWERED_LATER)]
    conversation = {"id": "1", "conversations": [{"from": who, "value": text} for who, text in turns]}
    (folder / "chats.json").write_text(json.dumps([conversation]))
    path = folder / "replies.sqlite3"
    command = [sys.executable, "-m", "app", "dataset", "--input", str(folder / "chats.json")]
    command += ["--output", str(path), "--model", MODEL]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert built.returncode == 0, built.stderr
    return path


def chat(client: Client, *turns: tuple[str, str]) -> str:
    """What is said to a conversation."""
    messages = [{"role": role, "content": text} for role, text in turns]
    told = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 100}).json()
    return str(told["choices"][0]["message"]["content"])


def text(client: Client, prompt: str) -> str:
    told = client.post("/v1/completions", {"prompt": prompt, "max_tokens": 100}).json()
    return str(told["choices"][0]["text"])


TURNS = [("user", ASKED), ("assistant", ANSWERED), ("user", LATER)]


@pytest.mark.parametrize("in_memory", ["true", "false"])
def test_a_known_prompt_gets_its_recorded_reply_and_another_some_recorded_one(
    file: Path, in_memory: str
) -> None:
    with served("--dataset-path", f"{MODEL}={file}", "--dataset-in-memory", in_memory) as client:
        for _ in range(5):
            choice = client.chat(ASKED)["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWERED, "stop")
        assert chat(client, *TURNS) == ANSWERED_LATER
        assert text(client, ASKED) == ANSWERED
        assert {chat(client, ("user", str(number))) for number in range(12)} <= {ANSWERED, ANSWERED_LATER}
        cut = client.chat(ASKED, max_tokens=3)
        assert ANSWERED.startswith(cut["choices"][0]["message"]["content"])
        assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 3)
        filled = client.chat(ASKED, max_tokens=60, ignore_eos=True)
        assert filled["choices"][0]["message"]["content"].startswith(ANSWERED)
        assert (filled["choices"][0]["finish_reason"], filled["usage"]["completion_tokens"]) == ("length", 60)


def test_an_older_file_knows_a_chat_by_its_turns_and_a_text_as_one(tmp_path: Path) -> None:
    pieces = ["Black", ",", " with", " stars", "."]
    rows = [(text_hash(said), json.dumps(pieces), len(pieces)) for said in (TURNS, [("user", LATER)])]
    other = json.dumps(["?"] * len(pieces))
    rows += [(text_hash([("user", str(number))]), other, len(pieces)) for number in range(50)]
    with served("--dataset-path", str(make_file(tmp_path / "old.sqlite3", rows))) as client:
        assert chat(client, *TURNS) == text(client, LATER) == ANSWERED_LATER


def test_the_dataset_of_another_model_and_a_broken_file_are_not_used(file: Path, tmp_path: Path) -> None:
    with served("--dataset-path", f"another={file}") as client:
        assert client.chat(ASKED)["choices"][0]["message"]["content"] != ANSWERED
    (tmp_path / "broken.sqlite3").write_bytes(b"no database at all" * 100)
    with served("--dataset-path", str(tmp_path / "broken.sqlite3")) as client:
        assert client.chat(ASKED)["choices"][0]["message"]["content"]
        assert "is not used" in client.server.log()


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="there is no file"),
        served("--dataset-path", str(tmp_path / "nowhere.sqlite3")),
    ):
        pass
