"""Answers of rules with `times`, counted by several processes and ranks."""

import os
from pathlib import Path

import requests

from app.extensions.scripts.shared_uses import SharedUses, new_table
from tests.extensions.scripts.wire.test_server import processes_of_rank
from tests.hostile.raw_client import wait_until
from tests.running_server import running_gunicorn


def test_processes_never_give_more_answers_than_allowed(tmp_path: Path) -> None:
    key = b"rule one"
    with new_table() as file:
        uses = SharedUses(file.fileno())
        children = []
        for number in range(4):
            child = os.fork()
            if child == 0:
                taken = sum(uses.take(key, limit=100) for _ in range(60))
                (tmp_path / str(number)).write_text(str(taken))
                os._exit(0)
            children.append(child)
        for child in children:
            _, status = os.waitpid(child, 0)
            assert status == 0
        assert uses.count(key) == 100
    assert sum(int(result.read_text()) for result in tmp_path.iterdir()) == 100


def test_a_sequence_continues_on_the_other_rank() -> None:
    rules = [{"times": 1, "then": {"text": text}} for text in ("one", "two", "three", "four")]
    with running_gunicorn(env={"SIM_DATA_PARALLEL_SIZE": "2"}, ports=2) as server:
        for rank in (0, 1):
            wait_until(lambda rank=rank: len(processes_of_rank(server, rank)) == 1)
        url = f"{server.url}/admin/script/rules?ranks=all"
        assert requests.post(url, json={"rules": rules}, timeout=20).status_code == 200
        texts = [reply_of(server.port + rank) for rank in (0, 1, 1, 0)]
    assert texts == ["one", "two", "three", "four"]


def reply_of(port: int) -> str:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    answer = requests.post(url, json=body, timeout=20).json()
    return str(answer["choices"][0]["message"]["content"])
