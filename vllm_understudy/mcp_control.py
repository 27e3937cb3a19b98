"""A scripted MCP server for a test: its tools, results, faults and calls (docs/mcp.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_understudy import tree
from vllm_understudy.http_client import send
from vllm_understudy.mcp_script import ACTIONS, CALL, HANG_LIMIT_S, METHODS, Json, ScriptFolder
from vllm_understudy.ports import HOST, free_port

START_LIMIT_S = 30.0
STOP_LIMIT_S = 5.0
POLL_S = 0.02
FAULT_FIELDS = frozenset(("method", "when", "times", "seconds", "message"))
DEFAULT_SECONDS = {"delay": 1.0}
"""Default `seconds` of actions; `HANG_LIMIT_S` for all others."""
MAX_SECONDS = 3600
MAX_LINES = 30
"""Maximum number of calls in a report."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A message that an MCP server has received, as docs/mcp.md describes it."""

    arrived: str
    """Arrival, ISO 8601 in UTC."""
    method: str
    """`tools/call`, `tools/list` or `initialize`."""
    tool: str | None
    """Name of the called tool; None for other messages."""
    arguments: Any
    """Arguments of the call."""
    fault: str | None
    """Action of the fault that the message met."""
    result: Any
    """Scripted result; None for a fault, and for other messages than calls."""

    def __str__(self) -> str:
        text = self.method
        if self.tool is not None:
            text = f"{self.tool}({self.arguments})"
        if self.fault is not None:
            return f"{self.arrived[11:23]} {text} -> fault {self.fault}"
        return f"{self.arrived[11:23]} {text} -> {self.result!r}"


class McpServer:
    """An MCP server over stdio and Streamable HTTP. Nothing starts before `url` is read.

    Attributes:
        python: The interpreter of the server, which needs the package `mcp` (extra `mcp`).
    """

    def __init__(self, python: str | Path = sys.executable) -> None:
        self.python = str(python)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._script: dict[str, list[dict[str, Any]]] = {}
        self._rule_count = 0
        self._clear()

    def tool(
        self,
        name: str,
        *results: Json,
        description: str = "",
        parameters: Mapping[str, Json] | None = None,
    ) -> None:
        """Adds a tool, or replaces it. Calls get the `results` one by one, then the last again.

        A result is a text, or other JSON, which is sent as text and as structured content.
        `parameters` is the JSON Schema of the arguments.

        Raises:
            ValueError: an argument is invalid.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"a tool name must be a string, got {name!r}")
        _check_json(f"tool {name}", [description, parameters, *results])
        schema = dict(parameters or {"type": "object"})
        tool = {"name": name, "description": description, "parameters": schema}
        others = [entry for entry in self._script["tools"] if entry["name"] != name]
        self._script["tools"] = [*others, tool]
        defaults = [rule for rule in self._script["results"] if rule.get("default") == name]
        for rule in defaults:
            self._script["results"].remove(rule)
        for number, result in enumerate(results, 1):
            times: int | None = 1
            if number == len(results):
                times = None
            rule = self._rule(CALL, name, None, times)
            self._script["results"].append({**rule, "result": result, "default": name})
        self._write()

    def reply(
        self,
        tool: str,
        result: Json,
        *,
        when: Mapping[str, Json] | None = None,
        times: int | None = None,
    ) -> None:
        """Adds a result for calls with these arguments, before the results of `tool`.

        The first reply that applies is the result.

        Raises:
            ValueError: there is no such tool, or another argument is invalid.
        """
        self._check_tool(tool)
        _check_json(f"reply of {tool}", result)
        rule = {**self._rule(CALL, tool, when, times), "result": result}
        results = self._script["results"]
        own_count = sum("default" not in entry for entry in results)
        results.insert(own_count, rule)
        results.sort(key=_is_default)
        self._write()

    def fault(self, action: str, tool: str | None = None, **fields: Any) -> None:
        """Adds a fault: `error`, `protocol-error`, `delay`, `hang`, `disconnect` or `malformed`.

        The fields are `method` (`tools/call`), `when` and `times` as in `reply`, `seconds` and
        `message`, the text of an error. `seconds` is the length of `delay` (1). After a `hang` or a
        `malformed` line, it is the time until the connection is cut off (60).

        Raises:
            ValueError: an argument is invalid.
        """
        unknown = sorted(fields.keys() - FAULT_FIELDS)
        if unknown:
            raise ValueError(
                f"unknown field {unknown[0]!r}; a fault can have the fields "
                f"{', '.join(sorted(FAULT_FIELDS))}"
            )
        if action not in ACTIONS:
            raise ValueError(f"action must be one of {', '.join(ACTIONS)}, got {action!r}")
        method = fields.get("method", CALL)
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if tool is not None:
            self._check_tool(tool)
        seconds = fields.get("seconds")
        if seconds is None:
            seconds = DEFAULT_SECONDS.get(action, HANG_LIMIT_S)
        if not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SECONDS:
            raise ValueError(f"seconds must be a number from 0 to {MAX_SECONDS}, got {seconds!r}")
        rule = self._rule(method, tool, fields.get("when"), fields.get("times"))
        message = str(fields.get("message") or f"scripted {action}")
        self._script["faults"].append(
            {**rule, "action": action, "seconds": seconds, "message": message}
        )
        self._write()

    @property
    def url(self) -> str:
        """Address for Streamable HTTP; the first use starts the process of the server.

        Raises:
            RuntimeError: the server does not start; the message is one line.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        return f"http://{HOST}:{self._port}/mcp"

    @property
    def stdio(self) -> dict[str, Any]:
        """Command of the server over stdio, in the form of MCP clients: command, args and env."""
        environment = tree.environment({})
        return {
            "command": self.python,
            "args": ["-m", "vllm_understudy.mcp_server", str(self._folder().folder)],
            "env": environment,
        }

    def calls(self, tool: str | None = None, method: str = CALL) -> list[ToolCall]:
        """Returns the calls so far, of one tool or of all, from the first to the last."""
        if self._temporary is None:
            return []
        calls: list[ToolCall] = []
        for entry in self._folder().calls():
            del entry["rule"]
            call = ToolCall(**entry)
            if call.method == method and (tool is None or call.tool == tool):
                calls.append(call)
        return calls

    def assert_called(
        self, tool: str, times: int | None = None, *, when: Mapping[str, Json] | None = None
    ) -> list[ToolCall]:
        """Returns the calls of a tool with these arguments.

        Raises:
            AssertionError: their number is not `times`, or is zero without `times`.
        """
        __tracebackhide__ = True
        expected = dict(when or {})
        matching = [call for call in self.calls(tool) if expected.items() <= _items(call)]
        if len(matching) == times or (times is None and matching):
            return matching
        calls = self.calls()
        text = f"expected a call of {tool}"
        if times is not None:
            text = f"expected {times} calls of {tool}"
        if expected:
            text += f" with {expected}"
        text += f"; of {len(calls)} calls {len(matching)} fit"
        lines = [f"  {call}" for call in calls[-MAX_LINES:]]
        raise AssertionError("\n".join([text, *lines]))

    def reset(self) -> None:
        """Removes tools, results, faults and calls. The server of `url` continues to run."""
        self._clear()
        if self._temporary is not None:
            self._write()
            self._folder().clear_calls()

    def log(self) -> str:
        """Returns the output of the process behind `url`."""
        if self._temporary is None:
            return ""
        file = self._folder().folder / "server.log"
        if not file.exists():
            return ""
        return file.read_text(errors="replace")

    def close(self) -> None:
        """Stops the server, also in the middle of a call, and removes its files."""
        self._stop()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _clear(self) -> None:
        self._script = {"tools": [], "results": [], "faults": []}

    def _rule(
        self,
        method: str,
        tool: str | None,
        when: Mapping[str, Json] | None,
        times: int | None,
    ) -> dict[str, Any]:
        if times is not None and (not isinstance(times, int) or times < 1):
            raise ValueError(f"times must be at least 1, got {times!r}")
        if when is not None and not isinstance(when, Mapping):
            raise ValueError(f"the argument 'when' must be a mapping, got {when!r}")
        _check_json("when", when)
        self._rule_count += 1
        conditions = dict(when or {})
        return {
            "id": self._rule_count,
            "method": method,
            "tool": tool,
            "when": conditions,
            "times": times,
        }

    def _check_tool(self, name: str) -> None:
        names = [tool["name"] for tool in self._script["tools"]]
        if name not in names:
            raise ValueError(
                f"the tool {name!r} does not exist; available tools: {', '.join(names) or 'none'}"
            )

    def _folder(self) -> ScriptFolder:
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="understudy-mcp-")
            self._write()
        return ScriptFolder(Path(self._temporary.name))

    def _write(self) -> None:
        if self._temporary is not None:
            ScriptFolder(Path(self._temporary.name)).write(self._script)

    def _start(self) -> None:
        self._port = free_port()
        folder = self._folder().folder
        command = [*self.stdio["args"], "--port", str(self._port)]
        with (folder / "server.log").open("w") as log:
            try:
                self._process = subprocess.Popen(
                    [self.python, *command],
                    env=tree.environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            except OSError as error:
                raise RuntimeError(
                    f"the MCP server cannot start: {self.python}: {error.strerror}"
                ) from None
        deadline = time.monotonic() + START_LIMIT_S
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"the MCP server cannot start: {_last_line(self.log())}")
            if time.monotonic() > deadline:
                self._stop()
                raise RuntimeError(
                    f"the MCP server did not respond within {START_LIMIT_S:g} s: "
                    f"{_last_line(self.log())}"
                )
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        with suppress(OSError):
            return send("GET", f"http://{HOST}:{self._port}/health", timeout_s=1.0)[0] == 200
        return False

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()  # calls that hang would delay SIGTERM
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_LIMIT_S)
        self._process = None


@contextmanager
def running_mcp_server(python: str | Path = sys.executable) -> Iterator[McpServer]:
    """Provides an MCP server for the length of a block, without an LLM server."""
    server = McpServer(python)
    try:
        yield server
    finally:
        server.close()


def _check_json(place: str, value: object) -> None:
    """Raises `ValueError` for a value that is not JSON."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not valid JSON: {error}") from None


def _is_default(rule: Mapping[str, Any]) -> bool:
    return "default" in rule


def _items(call: ToolCall) -> Any:
    """Returns the arguments of a call, for a comparison with expected ones."""
    if not isinstance(call.arguments, dict):
        return {}.items()
    return call.arguments.items()


def _last_line(log: str) -> str:
    lines = log.strip().splitlines()
    if not lines:
        return "its log is empty"
    return lines[-1]
