"""Templates of requests run in a process that is stopped when they take too much."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime
from pathlib import Path
from typing import Any

import gevent
import pytest
import requests

from app.core.text.base import ChatOptions, ChatTemplateError
from app.core.text.chat_template import ChatTemplates
from app.core.text.huggingface import LocalTokenizer
from app.core.text.template_process import WORKER, TemplateProcess
from tests.running_server import ROOT, RunningServer, running_server

HI: list[Any] = [{"role": "user", "content": "hi"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set ns = namespace(s='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
)
CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    """A shared process, because each start takes a tenth of a second."""
    process = TemplateProcess(cpu_s=0.3)
    yield process
    process.close()


def render(process: TemplateProcess, source: str, messages: list[Any] = HI, **options: Any) -> str:
    templates = ChatTemplates(
        {"default": "default", "rag": "documents"},
        {"bos_token": "<s>"},
        now=lambda: datetime(2024, 2, 29, 13, 5),
        renderer=process,
    )
    return templates.render(messages, ChatOptions(chat_template=source, **options))


def pid_of(process: TemplateProcess) -> int:
    assert process._worker is not None
    return process._worker.process.pid


def test_template_process_renders_messages_arguments_and_tools(
    process: TemplateProcess,
) -> None:
    talk = [*HI, {"role": "assistant", "content": "one, two, \ud800"}]
    source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    expected = "<s>[user]hi[assistant]one, two, \ud800"
    assert render(process, source, talk) == expected
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert render(process, source + "[end]", talk, **options) == expected
    assert render(process, "{{ strftime_now('%d %B %Y') }}") == "29 February 2024"
    template_arguments = {"mood": 2**70, "nan": float("nan")}
    assert (
        render(process, "{{ mood }} {{ nan }}", chat_template_kwargs=template_arguments)
        == f"{2**70} nan"
    )
    assert render(process, "{{ tools | tojson }}", tools=[{"a": [1, None]}]) == '[{"a": [1, null]}]'
    assert render(process, "{{ messages | length }}", HI * 2_001) == "2001"


def test_configured_templates_render_without_a_separate_process() -> None:
    process = TemplateProcess(cpu_s=0.3)
    assert render(process, "rag") == "documents"
    assert render(process, "default") == "default"
    assert process._worker is None


def test_template_process_survives_template_errors(process: TemplateProcess) -> None:
    assert render(process, "a") == "a"
    pid = pid_of(process)
    for source, reason in (
        ("{{ 1 / 0 }}", "rejected the conversation: division by zero"),
        ("{{ raise_exception('no') }}", "rejected the conversation: no"),
        ("{% for %}", "does not compile"),
        (
            "{% if true %}" * 120 + "{% endif %}" * 120,
            "does not compile: too many levels of indentation",
        ),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "maximum recursion depth exceeded"),
        ("{{ range(10 ** 9) }}", "Range too big"),
        ("{{ 'a' * 10 ** 7 }}", "makes a prompt of 10000000 bytes: too long"),
    ):
        with pytest.raises(ChatTemplateError, match=reason):
            render(process, source)
    with pytest.raises(ChatTemplateError, match="must not set messages"):
        render(process, "a", chat_template_kwargs={"messages": []})
    assert pid_of(process) == pid


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (ENDLESS, "takes more than 0.3 s of processor time"),
        ("{{ message" + "|tojson" * 300 + " }}", "takes more than 0.3 s|recursion"),
        ("{{ 10 ** (10 ** 8) }}", "takes more than 0.3 s of processor time"),
        ("{{ 'a' * 10 ** 9 }}", "too much memory"),
        ("{{ [1] * 10 ** 9 }}", "too much memory"),
        ("{{ '%1000000000d' | format(1) }}", "too much memory"),
        ("{{ '{:>1000000000}'.format(1) }}", "too much memory"),
        ("{{ 'a'.zfill(10 ** 9) }}{{ 'a' | center(10 ** 9) }}", "too much memory"),
        (DOUBLING, "too much memory|takes more than 0.3 s"),
    ],
)
def test_template_that_exceeds_its_limits_is_stopped(
    process: TemplateProcess, source: str, reason: str
) -> None:
    with pytest.raises(ChatTemplateError, match=reason):
        render(process, source)
    assert render(process, "{{ messages[0].content }}") == "hi"


def test_killed_template_process_is_replaced(process: TemplateProcess) -> None:
    assert render(process, "a") == "a"
    worker = process._worker
    assert worker is not None
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert render(process, "b") == "b"


def test_next_request_does_not_receive_the_result_of_an_abandoned_one() -> None:
    process = TemplateProcess(cpu_s=30.0)
    assert render(process, "a") == "a"
    with pytest.raises(TimeoutError), gevent.Timeout(0.05, TimeoutError):
        render(process, ENDLESS)
    assert render(process, "b") == "b"
    process.close()


def test_template_process_that_does_not_respond_is_stopped() -> None:
    process = TemplateProcess(cpu_s=30.0, patience_s=0.5)
    with pytest.raises(ChatTemplateError, match="was stopped"):
        render(process, ENDLESS)
    process.close()


def test_template_process_environment_contains_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    process = TemplateProcess(cpu_s=0.3)
    assert render(process, "a") == "a"
    assert b"hf_secret" not in Path(f"/proc/{pid_of(process)}/environ").read_bytes()
    process.close()


def test_closing_the_tokenizer_ends_its_template_process(embedded: LocalTokenizer) -> None:
    options = ChatOptions(chat_template="{{ messages[0].content }}")
    assert embedded.encode_chat(HI, options) == embedded.encode("hi")
    renderer = embedded._templates._renderer
    assert isinstance(renderer, TemplateProcess)
    renderer.close()
    assert renderer._worker is None


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--trust-request-chat-template", "--seed", "1") as server:
        yield server


def workers_of(server: RunningServer) -> list[int]:
    return children_of(server.process.pid)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("path", "source", "reasons"),
    [
        (CHAT, ENDLESS, ("takes more than 2 s", "was stopped")),
        ("/tokenize", "{{ 'a' * 10 ** 9 }}", ("requires too much memory",)),
    ],
)
def test_hostile_template_returns_400_without_blocking_the_server(
    server: RunningServer, path: str, source: str, reasons: tuple[str, ...]
) -> None:
    """Health checks are answered while the template runs, and afterwards by the same process."""
    workers_before = workers_of(server)
    body = {"messages": HI, "chat_template": source, "max_tokens": 1}
    with ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(requests.post, server.url + path, json=body, timeout=50)
        while wait([hostile], timeout=0.05).not_done:
            assert requests.get(f"{server.url}/health", timeout=20).status_code == 200
        answer = hostile.result()
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith(tuple(f"The chat template {reason}" for reason in reasons))
    body["chat_template"] = "{{ messages[0].content }}"
    assert requests.post(server.url + path, json=body, timeout=20).status_code == 200
    assert workers_of(server) == workers_before


@pytest.mark.parametrize(
    ("source", "reasons"),
    [
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}" + ENDLESS,
            ("takes more than 2 s", "was stopped"),
        ),
        ("{{ 'a' * 10 ** 9 }}", ("requires too much memory",)),
    ],
)
def test_hostile_template_of_the_model_returns_400_without_blocking_the_server(
    tmp_path: Path, source: str, reasons: tuple[str, ...]
) -> None:
    """Health checks are answered meanwhile, the worker stays, and SIGTERM ends the server."""
    template = tmp_path / "hostile.jinja"
    template.write_text(source)
    with running_server("--chat-template", str(template)) as server:
        workers_before = workers_of(server)
        for more in ({}, {"tools": [TOOL]}):
            body = {"messages": HI, "max_tokens": 1, **more}
            with ThreadPoolExecutor(1) as pool:
                hostile = pool.submit(requests.post, server.url + CHAT, json=body, timeout=50)
                while wait([hostile], timeout=0.05).not_done:
                    assert requests.get(f"{server.url}/health", timeout=20).status_code == 200
                answer = hostile.result()
            assert answer.status_code == 400
            message = answer.json()["error"]["message"]
            assert message.startswith(tuple(f"The chat template {reason}" for reason in reasons))
        completion = {"prompt": "a", "max_tokens": 1}
        assert requests.post(f"{server.url}/v1/completions", json=completion).status_code == 200
        assert workers_of(server) == workers_before
        assert server.log().count("too large for the event loop") == 1


def test_one_process_renders_all_plain_chats_of_a_slow_template(tmp_path: Path) -> None:
    """The event loop, which looks at plain chats first, starts no process and ends none."""
    template = tmp_path / "slow.jinja"
    template.write_text("{{ ('a' * 10 ** 7) | length }}{{ messages[0].content }}")
    with running_server("--chat-template", str(template)) as server:
        (worker,) = workers_of(server)
        processes: set[int] = set()

        def chat(number: int) -> int:
            body = {"messages": [{"role": "user", "content": f"hi {number}"}], "max_tokens": 1}
            answer = requests.post(server.url + CHAT, json=body, timeout=50)
            processes.update(children_of(worker))
            return answer.status_code

        with ThreadPoolExecutor(60) as pool:
            assert set(pool.map(chat, range(120))) == {200}
        assert len(processes) == 1


def test_template_worker_exits_when_its_server_is_gone() -> None:
    connection, worker_connection = socket.socketpair()
    with connection, worker_connection:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", WORKER, "1.0", str(1 << 29)],
            cwd=ROOT,
            stdin=worker_connection.fileno(),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        assert worker.wait(timeout=30) == 0
    finally:
        worker.kill()
