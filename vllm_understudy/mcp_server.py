"""The process of a scripted MCP server: `python -m vllm_understudy.mcp_server FOLDER [--port N]`.

It serves the tools of a test with the official SDK, over stdio, or over Streamable HTTP with a
port. Faults are injected between the transport and the SDK.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm_understudy.mcp_script import CALL, DISCOVERY, METHODS, ScriptFolder

NAME = "understudy"
HOST = "127.0.0.1"
PATH = "/mcp"
MAX_BODY_BYTES = 4 << 20
"""Most bytes of a request that are read before the SDK, which has the same limit, and answers 413.
"""
PARENT_CHECK_S = 1.0
INTERNAL_ERROR = -32603
UNKNOWN_TOOL = -32602
NOT_JSON = '{"jsonrpc": "2.0", "id": 1, "result": {"content": ['
"""A message that ends in the middle."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def main() -> None:
    """Serves until the process is stopped, or until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m vllm_understudy.mcp_server")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, help="serve HTTP at this port instead of stdio")
    options = parser.parse_args()
    if not options.folder.is_dir():
        sys.exit(f"error: {options.folder}: the test that scripts this MCP server has ended")
    script = ScriptFolder(options.folder)
    try:
        server = make_server(script)
    except ImportError as error:
        sys.exit(
            f"error: the MCP server needs the package mcp 2 ({error}): "
            "pip install 'vllm-understudy[mcp]'"
        )
    if options.port is None:
        import anyio

        anyio.run(serve_stdio, server, script)
    else:
        serve_http(server, script, options.port)


def make_server(script: ScriptFolder) -> Any:
    """Returns an MCP server that lists the tools of the script and returns its results."""
    from mcp import MCPError
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

    async def list_tools(context: Any, params: Any) -> Any:
        tools = []
        for tool in script.script()["tools"]:
            tools.append(
                Tool(
                    name=tool["name"],
                    description=tool["description"] or None,
                    input_schema=tool["parameters"],
                )
            )
        return ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: Any) -> Any:
        rule = script.next_result({"name": params.name, "arguments": params.arguments})
        names = [tool["name"] for tool in script.script()["tools"]]
        if params.name not in names:
            raise MCPError(UNKNOWN_TOOL, f"Unknown tool: {params.name}")
        if rule is None:
            text = f"The test has set no result for this call of {params.name}."
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        if "action" in rule:
            text = rule["message"]
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        result = rule["result"]
        if isinstance(result, str):
            return CallToolResult(content=[TextContent(type="text", text=result)])
        structured = result
        if not isinstance(result, dict):
            structured = {"result": result}
        content = TextContent(type="text", text=json.dumps(result, ensure_ascii=False))
        return CallToolResult(content=[content], structured_content=structured)

    return Server(NAME, version="1", on_list_tools=list_tools, on_call_tool=call_tool)


def journal_message(script: ScriptFolder, message: object) -> dict[str, Any] | None:
    """Returns the fault for a JSON-RPC message, and journals the message.

    Calls without a fault are journaled with their result instead.
    """
    if not isinstance(message, dict):
        return None
    method = message.get("method")
    if method == DISCOVERY:
        method = METHODS[0]
    if method not in METHODS:
        return None
    params = message.get("params")
    if not isinstance(params, dict):
        params = {}
    fault = script.next_fault(method, params)
    if fault is None and method != CALL:
        script.add_message(method, params)
    return fault


def failed_answer(message: dict[str, Any], fault: dict[str, Any]) -> str:
    """Returns the error of JSON-RPC that answers a message."""
    error = {"code": INTERNAL_ERROR, "message": fault["message"]}
    return json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "error": error})


class FaultyHttp:
    """Injects faults into the requests of Streamable HTTP."""

    def __init__(self, application: Application, script: ScriptFolder) -> None:
        self._application = application
        self._script = script

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers a request, with its fault if the script has one."""
        import anyio

        if scope["type"] != "http" or scope["method"] != "POST":
            await self._application(scope, receive, send)
            return
        body, is_whole = await _body(receive)
        message: Any = None
        if is_whole:
            with suppress(ValueError, RecursionError):
                message = json.loads(body)
        fault = journal_message(self._script, message)
        action = None
        if fault is not None:
            action = fault["action"]
        if fault is not None and action in ("delay", "hang"):
            await anyio.sleep(fault["seconds"])
        if fault is not None and action in ("error", "protocol-error"):
            await _send_json(send, failed_answer(message, fault))
        elif action == "malformed":
            await _send_json(send, NOT_JSON)
        elif action in ("hang", "disconnect"):
            await _break_off(send)
        else:
            replayed = _Replayed(body, is_whole, receive)
            await self._application(scope, replayed.receive, send)


class _Replayed:
    """Gives what was read of a body to the application."""

    def __init__(self, body: bytes, is_whole: bool, receive: Receive) -> None:
        self._body: bytes | None = body
        self._is_whole = is_whole
        self._receive = receive

    async def receive(self) -> Message:
        """Returns what was read, and after that the messages of the server."""
        if self._body is None:
            return await self._receive()
        body = self._body
        self._body = None
        return {"type": "http.request", "body": body, "more_body": not self._is_whole}


async def _body(receive: Receive) -> tuple[bytes, bool]:
    """Returns the body, and True; what has arrived, and False for one that is too long.

    The part of a client that has left is dropped.
    """
    body = bytearray()
    while len(body) <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"", False
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body), True
    return bytes(body), False


async def _send_json(send: Send, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _break_off(send: Send) -> None:
    """Starts an answer that the server does not complete, so that it closes the connection."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b": broken off\n\n", "more_body": True})


def serve_http(server: Any, script: ScriptFolder, port: int) -> None:
    """Serves Streamable HTTP at `/mcp`, and GET /health."""
    import uvicorn
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def health(request: Any) -> Any:
        return PlainTextResponse("ok")

    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    application = server.streamable_http_app(custom_starlette_routes=[Route("/health", health)])
    uvicorn.run(FaultyHttp(application, script), host=HOST, port=port, log_level="warning")


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended, such as a test run that was killed."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


class FaultyInput:
    """The lines of standard input, without those that meet a fault."""

    def __init__(self, script: ScriptFolder, wire: int, tasks: Any) -> None:
        import anyio

        self._script = script
        self._wire = wire
        self._tasks = tasks
        self._lines_in, self._lines = anyio.create_memory_object_stream[str](1000)
        self._tasks.start_soon(self._read)

    def __aiter__(self) -> AsyncIterator[str]:
        lines: AsyncIterator[str] = self._lines.__aiter__()
        return lines

    async def _read(self) -> None:
        import anyio

        async for line in anyio.wrap_file(sys.stdin):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            fault = journal_message(self._script, message)
            if fault is None:
                await self._lines_in.send(line)
            else:
                self._tasks.start_soon(self._fail, line, message, fault)
        os._exit(0)  # the client has closed its end, and nothing else ends calls that hang

    async def _fail(self, line: str, message: dict[str, Any], fault: dict[str, Any]) -> None:
        import anyio

        action = fault["action"]
        if action in ("delay", "hang"):
            await anyio.sleep(fault["seconds"])
        if action == "delay":
            await self._lines_in.send(line)
        elif action in ("hang", "disconnect"):
            os._exit(1)
        elif action == "malformed":
            os.write(self._wire, f"{NOT_JSON}\n".encode())
            await anyio.sleep(fault["seconds"])
            os._exit(1)  # a client that waits for an answer does not wait forever
        else:
            os.write(self._wire, f"{failed_answer(message, fault)}\n".encode())


async def serve_stdio(server: Any, script: ScriptFolder) -> None:
    """Serves the client at the other end of standard input and output."""
    import anyio
    from mcp.server.stdio import stdio_server

    wire = os.dup(1)
    os.dup2(2, 1)  # prints of libraries do not reach the client
    with os.fdopen(os.dup(wire), "w", encoding="utf-8") as output:
        async with anyio.create_task_group() as tasks:
            lines: Any = FaultyInput(script, wire, tasks)
            async with stdio_server(lines, anyio.wrap_file(output)) as (reads, writes):
                await server.run(reads, writes, server.create_initialization_options())


if __name__ == "__main__":
    main()
