"""A real server downloads the file that it answers from."""

import hashlib
import json
from pathlib import Path

import requests

from app.engine.dataset.catalogue import ids_hash
from app.text import LocalTokenizer
from tests.dataset.file_server import open_shop
from tests.dataset.files import make_file
from tests.running_server import running_server

CHAT = [{"role": "user", "content": "Who are you?"}]
REPLY = "A stand-in for a model that is not here."


def test_the_file_is_downloaded_before_the_server_serves(tmp_path: Path, tokenizer: LocalTokenizer) -> None:
    ids = tokenizer.encode(REPLY)
    tokens = json.dumps({"Tokens": ids, "Strings": tokenizer.pieces(ids)})
    file = make_file(tmp_path / "x.sqlite3", [(ids_hash(tokenizer.encode_chat(CHAT)), tokens, len(ids))])
    content = file.read_bytes()
    path, digest = tmp_path / "new" / "replies.sqlite3", hashlib.sha256(content).hexdigest()
    with open_shop(content) as shop:
        flags = ["--dataset-path", str(path), "--dataset-url", shop.url, "--dataset-sha256", digest]
        with running_server(*flags) as server:
            url = f"{server.url}/v1/chat/completions"
            answer = requests.post(url, json={"messages": CHAT}, timeout=10).json()
            assert answer["choices"][0]["message"]["content"] == REPLY
            assert f"dataset {path}: 1 replies for all models" in server.log()
    assert path.read_bytes() == content
