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
from tests.surface.conftest import MODEL, served

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


@pytest.mark.parametrize("in_memory", ["true", "false"])
def test_a_known_prompt_gets_its_recorded_reply(file: Path, in_memory: str) -> None:
    with served("--dataset-path", str(file), "--dataset-in-memory", in_memory) as client:
        for _ in range(5):
            choice = client.chat(ASKED)["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWERED, "stop")
        messages = [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": ANSWERED},
            {"role": "user", "content": LATER},
        ]
        later = client.post("/v1/chat/completions", {"messages": messages}).json()
        assert later["choices"][0]["message"]["content"] == ANSWERED_LATER
        text = client.post("/v1/completions", {"prompt": ASKED, "max_tokens": 100}).json()["choices"][0]
        assert text["text"] == ANSWERED


def test_an_older_file_knows_a_chat_by_its_turns_and_a_text_as_one(tmp_path: Path) -> None:
    turns = [("user", ASKED), ("assistant", ANSWERED), ("user", LATER)]
    pieces = ["Black", ",", " with", " stars", "."]
    rows = [(text_hash(said), json.dumps(pieces), len(pieces)) for said in (turns, [("user", LATER)])]
    other = json.dumps(["?"] * len(pieces))
    rows += [(text_hash([("user", str(number))]), other, len(pieces)) for number in range(50)]
    with served("--dataset-path", str(make_file(tmp_path / "old.sqlite3", rows))) as client:
        messages = [{"role": role, "content": text} for role, text in turns]
        chat = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 100}).json()
        assert chat["choices"][0]["message"]["content"] == ANSWERED_LATER
        text = client.post("/v1/completions", {"prompt": LATER, "max_tokens": 100}).json()["choices"][0]
        assert text["text"] == ANSWERED_LATER


def test_a_limit_cuts_it_and_ignoring_its_end_fills_it_up(file: Path) -> None:
    with served("--dataset-path", f"{MODEL}={file}") as client:
        cut = client.chat(ASKED, max_tokens=3)
        assert ANSWERED.startswith(cut["choices"][0]["message"]["content"])
        assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 3)
        filled = client.chat(ASKED, max_tokens=60, ignore_eos=True)
        assert filled["choices"][0]["message"]["content"].startswith(ANSWERED)
        assert (filled["choices"][0]["finish_reason"], filled["usage"]["completion_tokens"]) == ("length", 60)


def test_an_unknown_prompt_gets_some_recorded_reply(file: Path) -> None:
    with served("--dataset-path", str(file)) as client:
        said = {client.chat(f"Question {number}")["choices"][0]["message"]["content"] for number in range(12)}
        assert said <= {ANSWERED, ANSWERED_LATER}


def test_the_dataset_of_another_model_is_not_used(file: Path) -> None:
    with served("--dataset-path", f"another={file}") as client:
        assert client.chat(ASKED)["choices"][0]["message"]["content"] != ANSWERED


def test_a_file_that_is_no_dataset_is_left_aside_with_a_warning(tmp_path: Path) -> None:
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
