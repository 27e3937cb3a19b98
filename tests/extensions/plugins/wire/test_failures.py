"""A plugin that raises, says nonsense or blocks at run time is named, and spoils nothing of others."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.request import EngineRequest, ScriptedReply
from app.core.engine.sampling import Sampling
from app.extensions.plugins.guard import Guard
from tests.extensions.plugins.conftest import plugin_module
from tests.running_server import RunningServer, running_server

MIDDLEWARE = """
from math import nan

class Wrong(Middleware):
    def begin(self, context):
        if "x-begin" in context.headers:
            raise KeyError("begin")
        if context.headers.get("x-given"):
            return "no response"
    def end(self, context, response):
        if "x-end" in context.headers:
            response.headers["X-Split"] = "a\\r\\nb"

class Cost:
    def seconds(self, batch, start_s, idle):
        return -1.0
"""
WRONG = """
def middleware(self):
    return {Position.AUTHENTICATED: [Wrong()]}

def reply(self):
    return self.write

def write(self, request, rng):
    match request.echo_text:
        case "raise": raise RuntimeError("reply")
        case "exit": raise SystemExit(3)
        case "wrong": return 42
        case "calls": return ScriptedReply(calls=(("f", "no JSON"),))
        case "waits": return ScriptedReply(text="x", per_token_s=nan)
        case "refuse": raise ApiError(418, "Teapot", "No coffee.")
        case "hold":
            from time import perf_counter
            end = perf_counter() + 0.1
            while perf_counter() < end: pass

def reply_length(self):
    return lambda request, rng: "long"

def fault(self):
    return lambda facts: "503" if facts.header("x-fault-of-mine") else None

def metrics(self):
    return [lambda: "vllm:num_requests_running 7\\n"]

def routes(self):
    return {
        "wrong": [
            get("/mine/raises", lambda context: 1 / 0), get("/mine/wrong", lambda context: "text")
        ]
    }

def step_cost(self, profile):
    return Cost()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("plugins") / "wrong.py"
    path.write_text(plugin_module(WRONG, "wrong", preamble=MIDDLEWARE))
    with running_server("--plugin", str(path), "--profile", "qwen3-14b-h100") as running:
        yield running


def chat(server: RunningServer, text: str, **headers: str) -> requests.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 3}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(f"{server.url}/v1/chat/completions", json=body, headers=names, timeout=20)


def hook(server: RunningServer, name: str) -> dict[str, Any]:
    [plugin] = requests.get(f"{server.url}/admin/plugins", timeout=20).json()["plugins"]
    counted: dict[str, Any] = plugin["hooks"][name]
    return counted


@pytest.mark.parametrize("text", ["raise", "exit", "wrong", "calls", "waits"])
def test_failing_plugin_reply_falls_back_to_the_default_reply(
    server: RunningServer, text: str
) -> None:
    errors_before = hook(server, "reply")["errors"]
    answer = chat(server, text)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3
    assert hook(server, "reply")["errors"] == errors_before + 1


def test_request_rejected_by_a_plugin_gets_the_status_of_the_plugin(
    server: RunningServer,
) -> None:
    errors_before = hook(server, "reply")["errors"]
    refused = chat(server, "refuse")
    assert (refused.status_code, refused.json()["error"]["message"]) == (418, "No coffee.")
    assert hook(server, "reply")["errors"] == errors_before


@pytest.mark.parametrize("header", ["x_begin", "x_given"])
def test_failing_middleware_fails_only_its_request(server: RunningServer, header: str) -> None:
    failed = chat(server, "Hi", **{header: "1"})
    error = {
        "message": "The plugin wrong failed to handle the request.",
        "type": "InternalServerError",
    }
    assert failed.status_code == 500
    assert failed.json()["error"] == {**error, "param": None, "code": 500}
    answer = chat(server, "Hi", x_end="1")  # which goes out without what cannot be sent
    assert answer.status_code == 200 and "X-Split" not in answer.headers


@pytest.mark.parametrize("path", ["/mine/raises", "/mine/wrong"])
def test_failing_plugin_route_returns_500(server: RunningServer, path: str) -> None:
    answer = requests.get(server.url + path, timeout=20)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")


def test_failing_plugin_hooks_are_ignored_and_counted(
    server: RunningServer,
) -> None:
    """No fault, families of its own only, and a step costs what the profile says."""
    assert chat(server, "Hi", x_fault_of_mine="1").status_code == 200
    assert hook(server, "fault")["errors"] == 1
    metrics = requests.get(f"{server.url}/metrics", timeout=20).text
    assert "vllm:num_requests_running" in metrics and "vllm:num_requests_running 7" not in metrics
    assert hook(server, "metrics")["errors"] >= 1
    assert chat(server, "Hi").json()["usage"]["completion_tokens"] == 3
    assert hook(server, "step_cost")["errors"] >= 3
    assert hook(server, "reply_length")["errors"] >= 1


def test_repeated_failure_of_a_plugin_hook_is_logged_once(
    server: RunningServer,
) -> None:
    holds_before = hook(server, "reply")["long_holds"]
    assert chat(server, "hold").status_code == chat(server, "hold").status_code == 200
    held = hook(server, "reply")
    assert held["long_holds"] >= holds_before + 2 and held["longest_hold_ms"] >= 90
    assert server.log().count("plugin wrong: hook reply held the event loop") == 1
    for _ in range(2):
        chat(server, "raise")
    assert server.log().count("plugin wrong: hook reply failed") == 1
    assert hook(server, "reply")["in_use"] is True


def test_reply_hook_that_blocks_in_a_thread_delays_no_other_request(tmp_path: Path) -> None:
    """While one waits for a file, without gevent's knowledge, another request is answered."""
    ready = tmp_path / "ready"
    path = tmp_path / "slow.py"
    preamble = "from pathlib import Path\nfrom gevent.monkey import get_original\n"
    body = f"""
def reply(self):
    return off_loop(self.wait)

def wait(self, request, rng):
    while not Path({str(ready)!r}).exists():
        get_original("time", "sleep")(0.01)
    return f"waited, {{self.request().path}}"
"""
    path.write_text(plugin_module(body, "slow", preamble))
    with running_server("--plugin", str(path)) as server, ThreadPoolExecutor() as pool:
        waiting = pool.submit(chat, server, "Hi")
        while not hook(server, "reply")["calls"]:
            pass
        assert requests.get(f"{server.url}/health", timeout=20).status_code == 200
        assert not waiting.done()
        ready.touch()
        answer = waiting.result(20).json()["choices"][0]["message"]["content"]
        assert answer.startswith("waited")


def test_failing_middleware_on_the_fast_path_fails_only_its_request(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fast.py"
    preamble = """
import time

class Picky(Middleware):
    def begin(self, context):
        if "x-raise" in context.headers:
            raise KeyError("begin")
        if "x-wait" in context.headers:
            time.sleep(0.01)
"""
    body = "def middleware(self):\n    return {Position.AUTHENTICATED: [Picky()]}\n"
    path.write_text(plugin_module(body, "fast", preamble))
    with running_server("--plugin", str(path)) as server:
        assert chat(server, "Hi").status_code == 200
        assert [
            chat(server, "Hi", **{name: "1"}).status_code for name in ("x_raise", "x_wait")
        ] == [500, 500]
        assert chat(server, "Hi").status_code == 200
        [plugin] = requests.get(f"{server.url}/admin/plugins", timeout=20).json()["plugins"]
        metrics = requests.get(f"{server.url}/metrics", timeout=20).text
    assert plugin["hooks"]["middleware"]["errors"] == 2
    assert re.search(r'understudy_requests_total{.*way="fast".*} 4', metrics)


GIVEN: dict[str, Any] = {
    "model": "m",
    "prompt_ids": (1,),
    "echo_text": "",
    "max_tokens": 5,
    "sampling": Sampling(max_tokens=5),
}
REQUEST = EngineRequest(request_id="1", index=0, arrival_s=0.0, **GIVEN)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.builds(ScriptedReply, text=inner)
    ),
)


@given(ANYTHING)
def test_invalid_results_of_reply_and_length_hooks_are_ignored(result: Any) -> None:
    guard = Guard("any", "reply")
    reply = guard.reply(lambda request, rng: result)(REQUEST, Random(1))
    assert (reply is None) == (result is None or guard.errors > 0)
    assert reply is None or isinstance(reply, ScriptedReply)
    length = Guard("any", "reply_length").length(lambda request, rng: result)(REQUEST, Random(1))
    assert length is None or type(length) is int
