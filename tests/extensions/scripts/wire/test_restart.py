"""Rules and faults that were set at run time survive the crash of a worker."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import vllm_understudy
from tests.hostile.raw_client import wait_until
from tests.running_server import running_server
from tests.sdks import openai


@contextmanager
def scripted_server(*flags: str) -> Iterator[vllm_understudy.Server]:
    """A server with a journal, and the client by which a test sets its rules."""
    with running_server("--journal", "100", *flags) as server:
        yield vllm_understudy.Server(server.port, server.log_file)


@pytest.fixture
def server() -> Iterator[vllm_understudy.Server]:
    with scripted_server() as server:
        yield server


def arbiter_of(server: vllm_understudy.Server) -> int:
    match = re.search(r"Listening at: \S+ \((\d+)\)", server.log())
    assert match
    return int(match[1])


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def crash(server: vllm_understudy.Server) -> None:
    """Kills the worker, and waits until the arbiter has started another one."""
    arbiter = arbiter_of(server)
    [worker] = children(arbiter)
    os.kill(worker, signal.SIGKILL)

    def is_worker_replaced() -> bool:
        return children(arbiter) not in ([], [worker]) and server.is_healthy()

    wait_until(is_worker_replaced)


def ask(server: vllm_understudy.Server, text: str = "hi", scope: str = "") -> str | None:
    client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
    answer = client.chat.completions.create(
        model="understudy-tiny",
        messages=[{"role": "user", "content": text}],
        extra_headers={"X-Understudy-Scope": scope},
    )
    return answer.choices[0].message.content


def test_rules_and_settings_survive_a_worker_crash(server: vllm_understudy.Server) -> None:
    server.replies(["one", "two", "three"])
    removed = server.reply({"message": "removed"}, then={"text": "x"})
    server.reply({"message": "kept"}, then={"text": "Kept: {{ message }}."}, name="kept")
    server.reply({"message": "hi"}, then={"text": "scoped"}, scope="a")
    server.fault("error", status=503, path="/v1/completions")
    removed.remove()
    assert ask(server) == "one"
    rules = server.ask("GET", "/admin/script/rules")["rules"]
    crash(server)
    restored = server.ask("GET", "/admin/script/rules")["rules"]
    assert [(rule["id"], rule["name"]) for rule in restored] == [
        (rule["id"], rule["name"]) for rule in rules
    ]
    assert [ask(server), ask(server)] == ["two", "three"]
    assert [ask(server, "kept"), ask(server, "hi", "a")] == ["Kept: kept.", "scoped"]
    with pytest.raises(openai.BadRequestError):
        ask(server)
    assert [fault["status"] for fault in server.faults] == [503]
    server.unmatched()

    last = server.reply({"message": "new"}, then={"text": "new"})
    crash(server)
    assert ask(server, "new") == "new" and last.answered == 1
    server.reset()
    crash(server)
    assert server.ask("GET", "/admin/script/rules") == {"rules": []} and ask(server)


def test_rule_id_is_not_reused_after_a_crash(
    server: vllm_understudy.Server,
) -> None:
    """A rank that did not crash has later ids, and a rule has one id on all ranks."""
    server.replies(["one", "two"]).remove()
    crash(server)
    crash(server)
    server.reply({"message": "new"}, then={"text": "new"})
    [rule] = server.ask("GET", "/admin/script/rules")["rules"]
    assert rule["id"] == 3


def test_reload_removes_the_runtime_rules(server: vllm_understudy.Server) -> None:
    server.reply(then={"text": "set"})
    assert ask(server) == "set"
    arbiter = arbiter_of(server)
    [worker] = children(arbiter)
    os.kill(arbiter, signal.SIGHUP)

    def has_worker_ended() -> bool:
        return worker not in children(arbiter)

    wait_until(has_worker_ended)
    assert ask(server) != "set"
    crash(server)
    assert ask(server) != "set"


def test_crashed_worker_restarts_even_if_the_script_file_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "rules.json"
    rule = {"when": {"message": "hi"}, "then": {"text": "from the file"}}
    script.write_text(json.dumps({"rules": [rule]}))
    with scripted_server("--script", str(script)) as server:
        script.unlink()
        crash(server)
        assert ask(server) == "from the file"
        [file] = server.ask("GET", "/admin/script")["files"]
        assert "cannot be read" in file["error"]
        script.write_text(json.dumps({"rules": [rule | {"then": {"text": "is back"}}]}))

        def is_file_read() -> bool:
            return ask(server) == "is back"

        wait_until(is_file_read)
