"""Requests leave no cyclic garbage behind, whatever becomes of them:

the worker hardly ever collects any.
"""

import gc
import json
from collections.abc import Callable
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, cast

import gevent.socket
import pytest
from werkzeug.test import EnvironBuilder

from app.core.server.flask.application import Understudy
from app.core.server.gunicorn.fair_turns import FairTurns
from app.core.server.gunicorn.fast_connection import FastConnection
from app.core.server.gunicorn.hub_connection import FastPath
from app.core.server.gunicorn.logs import ServerLogger
from tests.application import app_of
from tests.present import is_present

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
LOAD = "/v1/load_lora_adapter"
ADAPTER_REQUESTS: list[tuple[str, Any, str]] = []
if is_present("adapters"):
    body = {"lora_name": "a", "lora_path": "b", "load_inplace": True}
    ADAPTER_REQUESTS.append((LOAD, body, "200"))
TIMES = 20
ENDS = {False: b'"metrics":null}', True: b"0\r\n\r\n"}


@pytest.fixture(scope="module")
def app() -> Understudy:
    return app_of("--force-dummy-tokenizer")


@pytest.fixture(scope="module")
def paced() -> Understudy:
    """A token a millisecond, so that answers are under way when they are written."""
    return app_of("--force-dummy-tokenizer", "--inter-token-latency", "1ms", "--seed", "1")


@pytest.fixture(scope="module")
def observed() -> Understudy:
    """As `paced`, with everything that observes requests for the console."""
    flags = ["--console"] * is_present("console")
    return app_of("--force-dummy-tokenizer", "--inter-token-latency", "1ms", "--seed", "1", *flags)


def check_garbage(path: str, body: Any, status: str, **environ: Any) -> None:
    """Asserts that requests are answered with `status`, and leave nothing to the collector."""
    app = app_of("--force-dummy-tokenizer", "--allow-runtime-lora-updating")
    assert call(app, path, body, **environ).startswith(status)
    assert leftovers(lambda: call(app, path, body, **environ)) < 1


def leftovers(work: Callable[[], Any]) -> float:
    """Objects per call of `work` that only the collector can free."""
    work()  # what is made once does not count
    gc.disable()
    gc.freeze()  # what is there is not looked through
    try:
        for _ in range(TIMES):
            work()
        return gc.collect() / TIMES
    finally:
        gc.enable()


def call(app: Understudy, path: str, body: Any, **environ: Any) -> str:
    """The status of the answer, which is read to its end."""
    environ_of_call = EnvironBuilder(path=path, method="POST", json=body).get_environ() | environ
    return copy_context().run(_answered, app, environ_of_call)


def _answered(app: Understudy, environ: Any) -> str:
    """In a context of its own, as a request of a worker has one."""
    statuses: list[str] = []
    reply = app(environ, lambda status, headers, problem=None: statuses.append(status))
    try:
        b"".join(reply)
    finally:
        if hasattr(reply, "close"):
            reply.close()
    return statuses[0]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, {"messages": MESSAGES}, "200"),
        (CHAT, {"messages": MESSAGES, "stream": True, "n": 2}, "200"),
        *ADAPTER_REQUESTS,
        (CHAT, {"messages": 3}, "400"),
        (CHAT, {"messages": MESSAGES, "temperature": 9}, "400"),
        (CHAT, {"messages": MESSAGES, "stream": True, "logprobs": True, "top_logprobs": 99}, "200"),
        ("/admin/config", {"inter-token-latency": "0s"}, "200"),
    ],
)
def test_request_leaves_no_cyclic_garbage(path: str, body: Any, status: str) -> None:
    check_garbage(path, body, status)


class FastClient:
    def __init__(self, app: Understudy) -> None:
        log = SimpleNamespace(access_log_enabled=False)
        self.path = FastPath(
            app=app,
            log=cast("ServerLogger", log),
            turns=FairTurns(),
            connections={},
            idle_s=60.0,
            serve_general=self._general,
            client_timeout_s=5.0,
        )
        server, self.sock = gevent.socket.socketpair()
        FastConnection(self.path, server, ("127.0.0.1", 1), None)

    def _general(self, connection: FastConnection, data: bytes) -> None:
        raise AssertionError("a plain request takes the fast path")

    def ask(self, stream: bool) -> None:
        """Send a request; a greenlet reads meanwhile."""
        data = json.dumps(
            {"messages": MESSAGES, "max_tokens": 20, "ignore_eos": True, "stream": stream}
        )
        lines = ("Host: test", "Content-Type: application/json", f"Content-Length: {len(data)}")
        head = "\r\n".join((f"POST {CHAT} HTTP/1.1", *lines))
        self.sock.sendall(f"{head}\r\n\r\n{data}".encode())

    def read(self, end: bytes) -> None:
        received = b""
        while not received.endswith(end):
            received += self.sock.recv(1 << 16)

    def leave(self) -> None:
        """Close the socket, and wait until the server has noticed."""
        self.sock.close()
        while self.path.connections:
            gevent.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("instance", ["app", "paced", "observed"])
def test_request_on_the_fast_path_leaves_no_cyclic_garbage(
    instance: str, stream: bool, request: pytest.FixtureRequest
) -> None:
    """At once and as tokens come, on a connection that goes on."""
    client = FastClient(request.getfixturevalue(instance))

    def work() -> None:
        client.ask(stream)
        client.read(ENDS[stream])
        gevent.sleep(0)  # what came is written; now it is done, too

    assert leftovers(work) < 1
    client.leave()


@pytest.mark.parametrize("stream", [False, True])
def test_client_disconnect_on_the_fast_path_leaves_no_cyclic_garbage(
    paced: Understudy, stream: bool
) -> None:
    def work() -> None:
        client = FastClient(paced)
        client.ask(stream)
        gevent.sleep(0.005)
        client.leave()
        client.path.heads.__dict__.clear()  # a worker's know their own functions as long as it lives
        client.path.__dict__.clear()

    assert leftovers(work) < 1
