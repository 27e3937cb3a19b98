"""Answers of rules with `times`, counted by several processes and ranks."""

import os
from pathlib import Path

import vllm_understudy
from app.extensions.scripts.shared_uses import SharedUses, new_table
from tests.extensions.scripts.wire.test_restart import ask


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
    with vllm_understudy.running_server(data_parallel_size=2) as server:
        server.replies(["one", "two", "three", "four"])
        texts = [ask(server, rank=rank) for rank in (0, 1, 1, 0)]
        assert texts == ["one", "two", "three", "four"]
