"""Controls a running server from a test: settings, faults, replies, journal and verdict."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from vllm_understudy.journal import JournalEntry, report
from vllm_understudy.mcp_control import McpServer

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
Rule: TypeAlias = Mapping[str, Json]
FAULT_RULES = "fault-rules"
SCRIPT_RULES = "/admin/script/rules"
TIMEOUT_S = 10.0


class ControlError(Exception):
    """The server rejected a test's request, or does not answer; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reactions of clients to errors and faults, as in `GET /admin/verdict` (docs/faults.md)."""

    clean: bool
    clients: dict[str, dict[str, Any]]
    """Address of a client, or a hash of its key -> its counters."""

    @property
    def findings(self) -> list[str]:
        """Mistakes of clients, one line for each client and kind of mistake."""
        return [
            f"{client}: {finding['kind']} ({finding['count']}): {finding['what']}"
            for client, counters in self.clients.items()
            for finding in counters["findings"]
        ]

    def count(self, counter: str) -> int:
        """Sums a counter over all clients.

        `counter` is `requests`, a status (`503`), or the name or action of a fault.
        """
        return sum(_count(counters, counter) for counters in self.clients.values())

    def __str__(self) -> str:
        return "\n".join(self.findings) or "clean"


class Reply:
    """A rule for replies that a test has set. A `with` block removes it at its end."""

    def __init__(self, server: Server, rule_id: int) -> None:
        self._server = server
        self._id = rule_id

    @property
    def answered(self) -> int:
        """Number of requests that the rule has answered, on all ranks."""
        ranks = self._server.ask("GET", f"{SCRIPT_RULES}?ranks=all").values()
        rules = [rule for rank in ranks for rule in rank["rules"] if rule["id"] == self._id]
        return sum(rule["answered"] for rule in rules)

    def remove(self) -> None:
        """Removes the rule from the server."""
        self._server.ask("DELETE", f"{SCRIPT_RULES}?ranks=all&id={self._id}")

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class Server:
    """A running server. Tests that share one call `reset` between them."""

    def __init__(
        self, port: int, log_file: Path, admin_key: str | None = None, tls: bool = False
    ) -> None:
        self.port = port
        self.log_file = log_file
        self.mcp = McpServer()
        """An MCP server for the tools of an agent (docs/mcp.md); it starts when it is used."""
        self._admin_key = admin_key
        self._tls = tls
        self._original_settings: dict[str, Json] = {}
        """Original values of changed settings, for `reset`."""
        self._has_scripts: bool | None = None
        self._has_replies = False

    @property
    def url(self) -> str:
        """Address of the server."""
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """The `base_url` of the OpenAI SDK."""
        return f"{self.url}/v1"

    def log(self) -> str:
        """Reads the server's stdout and stderr so far; empty once the log file is removed."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_text(errors="replace")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by their names in docs/configuration.md; secrets are masked."""
        return self.ask("GET", "/admin/config")

    def configure(self, **live: Json) -> None:
        """Changes live settings, `_` for `-` in names.

        Raises:
            ControlError: a setting is not live, or a value is invalid.
        """
        changed = {name.replace("_", "-"): value for name, value in live.items()}
        settings = self.settings
        self.ask("POST", "/admin/config?ranks=all", changed)
        for name in changed:
            if name in settings:
                self._original_settings.setdefault(name, settings[name])

    @property
    def faults(self) -> list[Rule]:
        """Fault rules in force, in the order of their evaluation."""
        return self.settings[FAULT_RULES] or []

    def fault(self, action: str, **fields: Json) -> None:
        """Appends a fault rule (docs/faults.md): `fault("error", status=429, times=2)`."""
        rule: dict[str, Json] = {"action": action, **fields}
        self.configure(fault_rules=[*map(dict, self.faults), rule])

    def clear_faults(self) -> None:
        """Removes all fault rules; active faults run to their end."""
        self.configure(fault_rules=[])

    def verdict(self, over: bool = True) -> Verdict:
        """Fetches the verdict. With `over=False`, retries of cut streams may still come."""
        verdict = self.ask("GET", f"/admin/verdict?over={str(over).lower()}")
        return Verdict(verdict["clean"], verdict["clients"])

    def reply(
        self,
        when: Rule | None = None,
        *,
        then: Rule | str,
        name: str = "",
        scope: str | None = None,
    ) -> Reply:
        """Adds a rule of a script (docs/scripts.md), after earlier rules and before rules of files.

        With a `scope`, it applies to requests with this header X-Understudy-Scope.

        Raises:
            ControlError: the rule is invalid.
        """
        rule: dict[str, Json] = {"name": name, "when": dict(when or {})}
        if isinstance(then, str):
            rule["then"] = then
        else:
            rule["then"] = dict(then)
        query = _query({"ranks": "all", "scope": scope})
        self._has_replies = True
        ranks = self.ask("POST", f"{SCRIPT_RULES}?{query}", rule)
        [new_rule] = next(iter(ranks.values()))["rules"]
        return Reply(self, new_rule["id"])

    def requests(
        self, route: str | None = None, contains: str | None = None, scope: str | None = None
    ) -> list[JournalEntry]:
        """Fetches the received requests, from the oldest to the newest.

        `route` filters by path, `contains` by a text in the body, and `scope` by scope.
        """
        query = _query({"ranks": "all", "route": route, "contains": contains, "scope": scope})
        ranks = self.ask("GET", f"/admin/journal?{query}").values()
        entries = [JournalEntry(**entry) for rank in ranks for entry in rank["entries"]]
        return sorted(entries, key=attrgetter("at"))

    def assert_called(
        self,
        times: int | None = None,
        *,
        route: str | None = None,
        contains: str | None = None,
        scope: str | None = None,
    ) -> list[JournalEntry]:
        """Returns the requests that match the filters.

        Raises:
            AssertionError: The number of requests is not `times`, or is zero without `times`.
        """
        __tracebackhide__ = True
        matching = self.requests(route, contains, scope)
        if len(matching) == times or (times is None and matching):
            return matching
        filters = _without_none({"route": route, "contains": contains, "scope": scope})
        raise AssertionError(report(times, filters, matching, self.requests()))

    def reset(self) -> None:
        """Restores live settings and fault rules, and removes clients, requests and replies.

        Counters of fault rules and of script rules are set to zero.
        """
        self.mcp.reset()
        if self._original_settings:
            self.ask("POST", "/admin/config?ranks=all", self._original_settings)
            self._original_settings = {}
        self.ask("DELETE", "/admin/verdict")
        self.ask("DELETE", "/admin/journal?ranks=all")
        if self._has_replies:
            self.ask("DELETE", f"{SCRIPT_RULES}?ranks=all")
            self._has_replies = False
        if self._has_scripts is None:
            self._has_scripts = bool(self.settings["script"])
        if self._has_scripts:
            self.ask("DELETE", "/admin/script")

    def ask(self, method: str, path: str, body: Mapping[str, Json] | None = None) -> dict[str, Any]:
        """Sends a request with the admin key; returns the JSON object of the response, or {}.

        Raises:
            ControlError: the status is 400 or more, or the server does not answer.
        """
        data = None
        if body is not None:
            data = json.dumps(body)
        headers = {"Content-Type": "application/json"}
        if self._admin_key:
            headers["X-Admin-Key"] = self._admin_key
        connection = self._connection()
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, HTTPException) as error:
            raise ControlError(
                f"{method} {path}: {error!r}; the server's log:\n{self.log()}"
            ) from error
        finally:
            connection.close()
        if response.status >= 400:
            raise ControlError(f"{method} {path} answered {response.status}: {text}")
        if not text.strip():
            return {}
        content = json.loads(text)
        if not isinstance(content, dict):
            return {}
        return content

    def is_healthy(self) -> bool:
        """Returns True when GET /health answers 200."""
        connection = self._connection()
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        if not self._tls:
            return HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        unverified = ssl._create_unverified_context()
        return HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_S, context=unverified)


def _without_none(fields: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value is not None}


def _query(fields: Mapping[str, str | None]) -> str:
    return urlencode(_without_none(fields))


def _count(counters: Mapping[str, Any], name: str) -> int:
    """Returns a counter, which may be among the errors or the faults; 0 without one."""
    for table in (counters, counters["errors"], counters["faults"]):
        count = table.get(name)
        if isinstance(count, int):
            return count
    return 0
