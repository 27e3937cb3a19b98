"""Answers of rules with `times`, counted by several processes and ranks."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Event

import pytest
import requests

from tests.extensions.scripts.wire.test_server import processes_of_rank
from tests.hostile.raw_client import Wire, wait_until
from tests.running_server import RunningServer, running_gunicorn

TAKE = """
import sys
from pathlib import Path
from app.extensions.scripts.shared_uses import SharedUses

uses = SharedUses(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(sum(uses.take("rule", limit=3000) for _ in range(2000)))
"""
"""A process that answers 2,000 times, if it may, once it has read a line."""
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
SPENT_RULES = 100
"""Rules whose counts each request reads, so that a stop of a process often meets an access."""
STOPS = 30
ANSWER_LIMIT_S = 2.0
"""Longest wait for an answer; benchmarks measure how short it is."""


@contextmanager
def takers(folder: Path) -> Iterator[list[Popen[str]]]:
    """Four processes that have begun to answer."""
    with ExitStack() as stack:
        processes: list[Popen[str]] = []
        for _ in range(4):
            command = [sys.executable, "-c", TAKE, str(folder)]
            taker = Popen(command, stdin=PIPE, stdout=PIPE, text=True)
            processes.append(stack.enter_context(taker))
            stack.callback(taker.kill)
        for taker in processes:
            assert taker.stdout is not None
            assert taker.stdout.readline() == "ready\n"
        for taker in processes:
            assert taker.stdin is not None
            taker.stdin.write("go\n")
            taker.stdin.flush()
        yield processes


def test_processes_together_use_exactly_the_times_limit_of_a_rule(tmp_path: Path) -> None:
    with takers(tmp_path) as processes:
        taken = [int(taker.communicate(timeout=60)[0]) for taker in processes]
    assert sum(taken) == 3000


def test_process_that_is_stopped_while_it_counts_delays_no_other_process(tmp_path: Path) -> None:
    with takers(tmp_path) as processes:
        stopped = processes[0]
        os.kill(stopped.pid, signal.SIGSTOP)
        taken = [int(taker.communicate(timeout=60)[0]) for taker in processes[1:]]
        os.kill(stopped.pid, signal.SIGCONT)
        taken.append(int(stopped.communicate(timeout=60)[0]))
    assert sum(taken) == 3000


def test_reply_sequence_of_a_rule_continues_on_another_rank() -> None:
    rules = [{"times": 1, "then": {"text": text}} for text in ("one", "two", "three", "four")]
    with two_ranks() as server:
        add_rules(server, rules)
        texts = [reply_of(server.port + rank) for rank in (0, 1, 1, 0)]
    assert texts == ["one", "two", "three", "four"]


def test_rank_answers_while_another_rank_is_stopped_under_the_load_of_a_times_rule() -> None:
    rules = [{"times": 1, "then": {"text": "spent"}} for _ in range(SPENT_RULES)]
    with two_ranks() as server:
        add_rules(server, [*rules, {"then": {"text": "later"}}])
        [worker] = processes_of_rank(server, 0)
        for _ in range(SPENT_RULES):
            assert reply_of(server.port) == "spent"
        with under_load(server.port):
            for _ in range(STOPS):
                with stopped(worker):
                    assert reply_of(server.port + 1, timeout_s=ANSWER_LIMIT_S) == "later"
                assert reply_of(server.port) == "later"


@pytest.mark.parametrize("fate", [None, signal.SIGSTOP, signal.SIGKILL])
def test_ranks_together_never_exceed_the_times_limit_of_a_rule(fate: int | None) -> None:
    limit = 100
    with two_ranks() as server, ThreadPoolExecutor(8) as clients:
        rules = [{"times": limit, "then": {"text": "limited"}}, {"then": {"text": "later"}}]
        add_rules(server, rules)
        [worker] = processes_of_rank(server, 0)
        first: list[Future[str]] = []
        for _ in range(limit // 4):
            first += [clients.submit(reply_or_error, server.port + rank) for rank in (0, 1)]
        first[-1].result()
        second = [clients.submit(reply_or_error, server.port) for _ in range(limit // 2)]
        if fate is not None:
            os.kill(worker, fate)
        # The other rank has separate clients: a stopped rank's clients wait.
        texts = Counter(reply_of(server.port + 1) for _ in range(limit))
        if fate == signal.SIGSTOP:
            os.kill(worker, signal.SIGCONT)
        texts.update(future.result() for future in [*first, *second])
        texts.update(reply_of(server.port + rank) for rank in (0, 1))
    if fate == signal.SIGKILL:  # answers that were claimed, but not sent, are lost
        assert limit - texts["error"] <= texts["limited"] <= limit
    else:
        assert texts["limited"] == limit
    assert texts["later"] > 0


@contextmanager
def two_ranks() -> Iterator[RunningServer]:
    """A server with a process for each of two ranks, once both listen at their own ports only."""
    with running_gunicorn(env={"SIM_DATA_PARALLEL_SIZE": "2"}, ports=2) as server:
        for rank in (0, 1):
            wait_until(partial(has_one_process, server, rank))
        yield server


def add_rules(server: RunningServer, rules: list[dict[str, object]]) -> None:
    url = f"{server.url}/admin/script/rules?ranks=all"
    assert requests.post(url, json={"rules": rules}, timeout=20).status_code == 200


@contextmanager
def under_load(port: int) -> Iterator[None]:
    """Four clients that send one chat after another."""
    has_ended = Event()

    def send_chats() -> None:
        with Wire(port) as wire:  # `requests` would take more time than the server
            while not has_ended.is_set():
                assert wire.post(CHAT, "/v1/chat/completions").answer().status == 200

    with ThreadPoolExecutor(4) as clients:
        futures = [clients.submit(send_chats) for _ in range(4)]
        try:
            yield
        finally:
            has_ended.set()
        for future in futures:
            future.result()


@contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def has_one_process(server: RunningServer, rank: int) -> bool:
    return len(processes_of_rank(server, rank)) == 1


def reply_or_error(port: int) -> str:
    """The reply to a chat; "error" if the rank was killed meanwhile."""
    try:
        return reply_of(port)
    except requests.RequestException:
        return "error"


def reply_of(port: int, timeout_s: float = 20) -> str:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    answer = requests.post(url, json=CHAT, timeout=timeout_s).json()
    return str(answer["choices"][0]["message"]["content"])
