"""A real server that says what was recorded."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import requests

from app.engine.dataset.catalogue import ids_hash
from app.text import LocalTokenizer
from tests.dataset.file_server import open_shop
from tests.dataset.files import Row, make_file
from tests.running_server import RunningServer, running_server

QUESTION, REPLY = "Who are you?", "A stand-in for a model that is not here."
CHAT = [{"role": "user", "content": QUESTION}]


def recorded(tokenizer: LocalTokenizer, prompt_ids: list[int], text: str) -> Row:
    ids = tokenizer.encode(text)
    tokens = {"Tokens": ids, "Strings": tokenizer.pieces(ids)}
    return ids_hash(prompt_ids), json.dumps(tokens), len(ids)


@pytest.fixture
def file(tmp_path: Path, tokenizer: LocalTokenizer) -> Path:
    rows = [
        recorded(tokenizer, tokenizer.encode_chat(CHAT), REPLY),
        recorded(tokenizer, tokenizer.encode(QUESTION), "A text."),
    ]
    return make_file(tmp_path / "replies.sqlite3", rows)


def ask(server: RunningServer, path: str = "chat/completions", **fields: Any) -> dict[str, Any]:
    """The first choice of the answer."""
    prompt = {"messages": CHAT} if path.startswith("chat") else {"prompt": QUESTION}
    answer = requests.post(f"{server.url}/v1/{path}", json=prompt | fields, timeout=10)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


@pytest.mark.parametrize("in_memory", ["true", "false"])
def test_prompts_get_what_was_recorded_for_them(
    file: Path, in_memory: str, tokenizer: LocalTokenizer
) -> None:
    count = len(tokenizer.encode(REPLY))
    with running_server("--dataset-path", str(file), "--dataset-in-memory", in_memory) as server:
        choice = ask(server)
        assert (choice["message"]["content"], choice["finish_reason"]) == (REPLY, "stop")
        assert ask(server, "completions")["text"] == "A text."
        cut = ask(server, max_tokens=2)
        assert cut["finish_reason"] == "length"
        assert cut["message"]["content"] == "".join(tokenizer.pieces(tokenizer.encode(REPLY)[:2]))
        longer = ask(server, max_tokens=count + 5, ignore_eos=True, return_token_ids=True)
        assert longer["finish_reason"] == "length"
        assert longer["message"]["content"].startswith(REPLY)
        assert len(longer["token_ids"]) == count + 5
        assert f"dataset {file}: 2 replies for all models" in server.log()


def test_the_file_is_downloaded_before_the_server_serves(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    path, digest = tmp_path / "new" / "replies.sqlite3", hashlib.sha256(content).hexdigest()
    with open_shop(content) as shop:
        flags = ["--dataset-path", str(path), "--dataset-url", shop.url, "--dataset-sha256", digest]
        with running_server(*flags) as server:
            assert ask(server)["message"]["content"] == REPLY
    assert path.read_bytes() == content


def test_a_file_that_does_not_exist_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as caught, running_server("--dataset-path", str(tmp_path / "nowhere")):
        pass
    assert re.search(r"ended with status [1-9]", str(caught.value))
    assert f"setting dataset-path: there is no file {tmp_path / 'nowhere'}" in str(caught.value)
