"""A real server downloads the file that our own tool has made, and answers from it."""

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

from app.core.cli import main
from app.extensions.datasets.catalogue import text_hash
from tests.client import MODEL, Client, served
from tests.extensions.datasets.file_server import open_shop

ASKED = "What colour is the sky?"
ANSWERED = "It is blue at noon and red in the evening."
LATER = "And at night?"
ANSWERED_LATER = "Black, with stars."
TURNS = [("user", ASKED), ("assistant", ANSWERED), ("user", LATER)]
OLDER = ["Grey", ",", " of", " old", "."]


def chat(client: Client, *turns: tuple[str, str]) -> str:
    messages = [{"role": role, "content": text} for role, text in turns]
    body = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 100}).json()
    return str(body["choices"][0]["message"]["content"])


def text(client: Client, prompt: str) -> str:
    body = client.post("/v1/completions", {"prompt": prompt, "max_tokens": 100}).json()
    return str(body["choices"][0]["text"])


def test_only_a_known_prompt_gets_a_recorded_reply(
    tmp_path: Path,
) -> None:
    file, source, path = (tmp_path / name for name in ("made.sqlite3", "chats.json", "new.sqlite3"))
    turns = [("human", ASKED), ("gpt", ANSWERED), ("human", LATER), ("gpt", ANSWERED_LATER)]
    source.write_text(
        json.dumps(
            [{"conversations": [{"from": speaker, "value": spoken} for speaker, spoken in turns]}]
        )
    )
    assert main(["dataset", "--input", str(source), "--output", str(file), "--model", MODEL]) == 0
    old = [("user", "An older file?")]  # whose hashes are of the turns, and a text is one of them
    rows = [
        (text_hash(spoken), json.dumps(OLDER), len(OLDER))
        for spoken in (old, [*old, ("user", "Yes?")])
    ]
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executemany(
            "INSERT INTO llmd (prompt_hash, gen_tokens, n_gen_tokens) VALUES (?, ?, ?)", rows
        )
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with open_shop(content) as shop:
        flags = ["--dataset-path", str(path), "--dataset-url", shop.url, "--dataset-sha256", digest]
        with served(*flags) as client:
            assert (
                f"dataset {path}: loaded {4 + len(rows)} replies for all models"
                in client.server.log()
            )
            for _ in range(5):
                choice = client.chat(ASKED)["choices"][0]
                assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWERED, "stop")
            assert (chat(client, *TURNS), text(client, ASKED)) == (ANSWERED_LATER, ANSWERED)
            recorded_texts = {ANSWERED, ANSWERED_LATER, "".join(OLDER)}
            assert {chat(client, ("user", str(number))) for number in range(12)} <= recorded_texts
            assert chat(client, *old, ("user", "Yes?")) == text(client, old[0][1]) == "".join(OLDER)
            cut, filled = (client.chat(ASKED, max_tokens=n, ignore_eos=True) for n in (3, 60))
            assert ANSWERED.startswith(cut["choices"][0]["message"]["content"])
            assert filled["choices"][0]["message"]["content"].startswith(ANSWERED)
            for answer, count in ((cut, 3), (filled, 60)):
                assert answer["choices"][0]["finish_reason"] == "length"
                assert answer["usage"]["completion_tokens"] == count
    assert path.read_bytes() == content
