"""The folder that a test and its MCP servers share: tools, results, faults, and the calls so far.

The test writes `script.json`. The processes of servers read it at each message, and append a line
to `calls.jsonl` for each message that they answer or fail. A lock keeps counts exact when several
processes serve one test.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from vllm_understudy.mcp_calls import CallLog

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
ACTIONS = ("error", "protocol-error", "delay", "hang", "disconnect", "malformed")
"""Kinds of faults (docs/mcp.md)."""
METHODS = ("initialize", "tools/list", "tools/call")
"""Messages that are journaled, and that faults can apply to."""
DISCOVERY = "server/discover"
"""The first message of newer clients, which is treated as `initialize`."""
CALL = "tools/call"
HANG_LIMIT_S = 60.0
"""Default time after which `hang` cuts off the connection."""
EMPTY: dict[str, Any] = {"tools": [], "results": [], "faults": []}


class ScriptFolder:
    """Reads and writes the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._script = folder / "script.json"
        self._calls = CallLog(folder / "calls.jsonl")
        self._lock = folder / "lock"

    def close(self) -> None:
        """Closes the file of the calls, which a process that answers calls keeps open."""
        self._calls.close()

    def write(self, script: Mapping[str, Any]) -> None:
        """Replaces the script."""
        text = json.dumps(script)
        new_file = self._script.with_suffix(".new")
        new_file.write_text(text, "utf-8")
        os.replace(new_file, self._script)

    def clear_calls(self) -> None:
        """Removes all calls, and with them the counts of rules."""
        with self._locked():
            self._calls.clear()

    def script(self) -> dict[str, Any]:
        """Returns the script; an empty one before the test has written any."""
        if not self._script.exists():
            return EMPTY
        script: dict[str, Any] = json.loads(self._script.read_text("utf-8"))
        return script

    def calls(self) -> list[dict[str, Any]]:
        """Returns the calls so far, from the first to the last."""
        with self._locked():
            return self._calls.calls()

    def next_fault(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the fault for a message, and journals it; None if the message does not fail.

        An `error` of a call is a result, which `next_result` returns.
        """
        with self._locked():
            fault = self._next_rule("faults", method, params)
            if fault is None or (method == CALL and fault["action"] == "error"):
                return None
            self._add(method, params, fault, fault["action"])
        return fault

    def next_result(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the result or the `error` of a call, and journals it; None for neither."""
        with self._locked():
            rule = self._next_rule("faults", CALL, params)
            if rule is not None and rule["action"] == "error":
                self._add(CALL, params, rule, "error")
                return rule
            rule = self._next_rule("results", CALL, params)
            self._add(CALL, params, rule, None)
        return rule

    def add_message(self, method: str, params: Mapping[str, Any]) -> None:
        """Journals a message that gets its usual answer."""
        with self._locked():
            self._add(method, params, None, None)

    def _next_rule(
        self, kind: str, method: str, params: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Returns the first rule that applies to a message and may be used again."""
        uses = self._calls.uses()
        rules: list[dict[str, Any]] = self.script()[kind]
        for rule in rules:
            is_left = rule["times"] is None or uses.get(rule["id"], 0) < rule["times"]
            if is_left and _applies(rule, method, params):
                return rule
        return None

    def _add(
        self,
        method: str,
        params: Mapping[str, Any],
        rule: Mapping[str, Any] | None,
        fault: str | None,
    ) -> None:
        """Appends a line to the calls."""
        entry: dict[str, Any] = {
            "arrived": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "method": method,
            "tool": None,
            "arguments": None,
            "fault": fault,
            "result": None,
            "rule": None,
        }
        if method == CALL:
            entry["tool"] = params.get("name")
            entry["arguments"] = params.get("arguments") or {}
        if rule is not None:
            entry["rule"] = rule["id"]
            entry["result"] = rule.get("result")
        self._calls.append(entry)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _applies(rule: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> bool:
    if rule["method"] != method:
        return False
    if rule["tool"] is not None and rule["tool"] != params.get("name"):
        return False
    arguments = params.get("arguments")
    if not isinstance(arguments, dict):
        arguments = {}
    return all(
        name in arguments and arguments[name] == value for name, value in rule["when"].items()
    )
