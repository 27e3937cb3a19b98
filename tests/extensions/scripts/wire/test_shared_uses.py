"""Answers of rules with `times`, counted by several processes and ranks."""

import sys
from contextlib import ExitStack
from functools import partial
from subprocess import PIPE, Popen

import requests

from app.extensions.scripts.shared_uses import SharedUses, new_table
from tests.extensions.scripts.wire.test_server import processes_of_rank
from tests.hostile.raw_client import wait_until
from tests.running_server import RunningServer, running_gunicorn

TAKE = """
import sys
from app.extensions.scripts.shared_uses import SharedUses

uses = SharedUses(int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(sum(uses.take(b"rule one", limit=100) for _ in range(60)))
"""
"""A process that answers 60 times, if it may, once it has read a line."""


def test_processes_together_never_exceed_the_times_limit_of_a_rule() -> None:
    with new_table() as file, ExitStack() as stack:
        descriptor = file.fileno()
        takers: list[Popen[str]] = []
        for _ in range(4):
            command = [sys.executable, "-c", TAKE, str(descriptor)]
            taker = Popen(command, stdin=PIPE, stdout=PIPE, text=True, pass_fds=[descriptor])
            takers.append(stack.enter_context(taker))
            stack.callback(taker.kill)
        for taker in takers:
            assert taker.stdout is not None
            assert taker.stdout.readline() == "ready\n"
        for taker in takers:
            assert taker.stdin is not None
            taker.stdin.write("go\n")
            taker.stdin.flush()
        taken = [int(taker.communicate()[0]) for taker in takers]
        assert SharedUses(descriptor).count(b"rule one") == sum(taken) == 100


def test_reply_sequence_of_a_rule_continues_on_another_rank() -> None:
    rules = [{"times": 1, "then": {"text": text}} for text in ("one", "two", "three", "four")]
    with running_gunicorn(env={"SIM_DATA_PARALLEL_SIZE": "2"}, ports=2) as server:
        for rank in (0, 1):
            wait_until(partial(has_one_process, server, rank))
        url = f"{server.url}/admin/script/rules?ranks=all"
        assert requests.post(url, json={"rules": rules}, timeout=20).status_code == 200
        texts = [reply_of(server.port + rank) for rank in (0, 1, 1, 0)]
    assert texts == ["one", "two", "three", "four"]


def has_one_process(server: RunningServer, rank: int) -> bool:
    return len(processes_of_rank(server, rank)) == 1


def reply_of(port: int) -> str:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    answer = requests.post(url, json=body, timeout=20).json()
    return str(answer["choices"][0]["message"]["content"])
