"""docs/mcp.md: a scripted MCP server, over stdio and HTTP, asked by the official client."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.needs import CLIENTS_PYTHON
from vllm_understudy import McpServer, running_mcp_server

CLIENT = Path(__file__).parents[1] / "mcp_client.py"
TRANSPORTS = ("http", "stdio")
ROME = {"city": "Rome"}
OSLO = {"city": "Oslo"}


@pytest.fixture(scope="module")
def shared_mcp() -> Iterator[McpServer]:
    with running_mcp_server(CLIENTS_PYTHON) as server:
        yield server


@pytest.fixture
def mcp(shared_mcp: McpServer) -> McpServer:
    shared_mcp.reset()
    return shared_mcp


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The process of a client, whose imports take longer than its calls."""
    errors = tmp_path_factory.mktemp("client") / "errors"
    with (
        errors.open("w") as file,
        subprocess.Popen(
            [str(CLIENTS_PYTHON), str(CLIENT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        ) as process,
    ):
        yield process
        process.kill()


class Asking:
    """Asks a server over one transport."""

    def __init__(self, process: subprocess.Popen[str], mcp: McpServer) -> None:
        self._process = process
        self._mcp = mcp

    def __call__(self, transport: str, *calls: tuple[str, dict[str, Any]]) -> Any:
        """The tools, and the outcomes of calls on one connection."""
        target = self._mcp.stdio if transport == "stdio" else self._mcp.url
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([target, calls]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture
def outcomes_of(client: subprocess.Popen[str], mcp: McpServer) -> Asking:
    return Asking(client, mcp)


@pytest.mark.clients
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_of_mcp_tools_return_results_and_are_recorded(
    mcp: McpServer, outcomes_of: Asking, transport: str
) -> None:
    mcp.tool("get_weather", "sunny", "rain", parameters={"type": "object"})
    mcp.tool("get_time", {"hour": 9})
    mcp.reply("get_weather", "snow", when=OSLO, times=1)
    weather = [("get_weather", city) for city in (OSLO, ROME, OSLO, ROME)]
    outcomes = outcomes_of(transport, *weather, ("get_time", {}))
    assert sorted(outcomes["tools"]) == ["get_time", "get_weather"]
    texts = [result["text"] for result in outcomes["results"]]
    assert texts == ["snow", "sunny", "rain", "rain", '{"hour": 9}']
    assert outcomes["results"][-1]["structured"] == {"hour": 9}
    assert [call.arguments for call in mcp.assert_called("get_weather", times=4)] == [
        OSLO,
        ROME,
        OSLO,
        ROME,
    ]
    assert mcp.assert_called("get_weather", times=2, when=ROME)[0].result == "sunny"
    assert mcp.calls(method="initialize")


@pytest.mark.clients
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_mcp_fault_fails_a_call_and_the_next_call_succeeds(
    mcp: McpServer, outcomes_of: Asking, transport: str
) -> None:
    mcp.tool("search", "found")
    mcp.fault("error", "search", times=1, message="no network")
    mcp.fault("protocol-error", times=1, message="out of order")
    mcp.fault("delay", times=1, seconds=0.01)
    outcomes = outcomes_of(transport, *[("search", {})] * 4)["results"]
    assert (outcomes[0]["is_error"], outcomes[0]["text"]) == (True, "no network")
    assert outcomes[1] == {"exception": "out of order"}
    assert [outcome["text"] for outcome in outcomes[2:]] == ["found", "found"]


@pytest.mark.clients
@pytest.mark.parametrize(
    ("transport", "action"),
    [("http", "disconnect"), ("http", "hang"), ("http", "malformed"), ("stdio", "hang")],
)
def test_mcp_call_without_a_response_raises_a_client_error(
    mcp: McpServer, outcomes_of: Asking, transport: str, action: str
) -> None:
    mcp.tool("search", "found")
    mcp.fault(action, times=1, seconds=0.01)
    [outcome] = outcomes_of(transport, ("search", {}))["results"]
    assert "exception" in outcome
    [call] = mcp.calls()
    assert (call.tool, call.fault, call.result) == ("search", action, None)


@pytest.mark.clients
def test_reset_removes_tools_and_calls_but_keeps_the_address(
    mcp: McpServer, outcomes_of: Asking
) -> None:
    mcp.tool("search", "found")
    mcp.fault("error")
    url = mcp.url
    outcomes_of("http", ("search", {}))
    mcp.reset()
    assert mcp.calls() == []
    mcp.tool("other", "new")
    outcomes = outcomes_of("http", ("other", {}), ("search", {}))
    assert mcp.url == url
    assert outcomes["results"][0]["text"] == "new"
    assert outcomes["results"][1]["exception"] == "Unknown tool: search"


def test_mcp_server_that_exits_at_startup_is_reported_in_one_line(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'error: no package mcp'\nexit 1\n")
    program.chmod(0o755)
    with running_mcp_server(program) as mcp, pytest.raises(RuntimeError) as error:
        _ = mcp.url
    assert str(error.value) == "the MCP server cannot start: error: no package mcp"


def test_mcp_server_that_never_responds_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setattr("vllm_understudy.mcp_control.START_LIMIT_S", 0.1)
    with running_mcp_server(program) as mcp, pytest.raises(RuntimeError) as error:
        _ = mcp.url
    assert str(error.value) == ("the MCP server did not respond within 0.1 s: its log is empty")


def test_missing_mcp_sdk_is_reported_with_the_extra_to_install(tmp_path: Path) -> None:
    blocked = tmp_path / "mcp.py"
    blocked.write_text("raise ImportError('no module named mcp')")
    command = [sys.executable, "-m", "vllm_understudy.mcp_server", str(tmp_path)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{CLIENT.parents[2]}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: the MCP server needs the package mcp 2 (no module named mcp): "
        "pip install 'vllm-understudy[mcp]'"
    ]


def test_invalid_mcp_rules_are_rejected_when_the_test_sets_them() -> None:
    with running_mcp_server() as mcp:
        mcp.tool("search", "found")
        for fields in ({"action": "explode"}, {"action": "hang", "tool": "serch"}):
            with pytest.raises(ValueError, match="explode|serch"):
                mcp.fault(**fields)
        with pytest.raises(ValueError, match="unknown field 'second'"):
            mcp.fault("hang", second=3)
        with pytest.raises(ValueError, match="times must be at least 1"):
            mcp.reply("search", "x", times=0)
        with pytest.raises(ValueError, match="tool search is not valid JSON"):
            mcp.tool("search", {1, 2})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="the argument 'when' must be a mapping"):
            mcp.fault("hang", when=["city"])
        with pytest.raises(AssertionError, match="expected 2 calls of search; of 0 calls 0 fit"):
            mcp.assert_called("search", times=2)


@pytest.mark.clients
def test_mcp_server_ends_when_the_test_run_is_killed(tmp_path: Path) -> None:
    program = f"""
import time, vllm_understudy
mcp = vllm_understudy.McpServer({str(CLIENTS_PYTHON)!r})
print(mcp.url, flush=True)
time.sleep(100)
"""
    run = subprocess.Popen(
        [sys.executable, "-c", program], cwd=CLIENT.parents[2], stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    url = urlsplit(run.stdout.readline().strip())
    run.kill()
    run.communicate()
    while True:
        try:
            socket.create_connection(("127.0.0.1", url.port or 0)).close()
        except ConnectionRefusedError:
            break
        time.sleep(0.05)


@pytest.mark.clients
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"arguments": ["city"]}}',
        b'{"jsonrpc": "2.0", "id": 1, "method": ["tools/call"]}',
    ],
)
def test_malformed_request_does_not_end_the_mcp_server(mcp: McpServer, body: bytes) -> None:
    mcp.tool("search", "found")
    mcp.fault("hang", when=OSLO)
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    answer = requests.post(mcp.url, data=body, headers=headers, timeout=20)
    assert 400 <= answer.status_code < 500
    assert requests.get(mcp.url.replace("/mcp", "/health"), timeout=20).text == "ok"


@pytest.mark.clients
def test_body_above_the_limit_is_rejected_before_it_has_arrived(mcp: McpServer) -> None:
    address = urlsplit(mcp.url)
    head = (
        f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(head.encode())
        for _ in range(65):
            connection.sendall(chunk)
        assert b" 413 " in connection.recv(100)
    assert requests.get(mcp.url.replace("/mcp", "/health"), timeout=20).text == "ok"
