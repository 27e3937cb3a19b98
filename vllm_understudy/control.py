"""Controls a running server from a test:

its settings, its faults, and the verdict on its clients.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from vllm_understudy.journal import JournalEntry, report

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
Rule: TypeAlias = Mapping[str, Json]
FAULT_RULES = "fault-rules"
SCRIPT_RULES = "/admin/script/rules"
TIMEOUT_S = 10.0


class ControlError(Exception):
    """The server refused a test's request, or does not answer; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reactions of clients to errors and faults:

    the report of `GET /admin/verdict` (docs/faults.md).
    """

    clean: bool
    clients: dict[str, dict[str, Json]]
    """Address of a client, or a hash of its key -> its counters."""

    @property
    def findings(self) -> list[str]:
        """Mistakes of clients, one line for each client and kind of mistake."""
        told = []
        for client, counted in self.clients.items():
            found = counted.get("findings")
            for finding in found if isinstance(found, list) else ():
                if isinstance(finding, dict):
                    told.append(
                        f"{client}: {finding['kind']} ({finding['count']}): {finding['what']}"
                    )
        return told

    def count(self, of: str) -> int:
        """Sums a counter over all clients:

        `requests`, a status (`503`), or a fault by name or action.
        """
        return sum(_counted(counted, of) for counted in self.clients.values())

    def __str__(self) -> str:
        return "\n".join(self.findings) or "clean"


class Reply:
    """A rule for replies that a test has set. A `with` block removes it at its end."""

    def __init__(self, server: Server, rule_id: int) -> None:
        self._server, self._id = server, rule_id

    @property
    def answered(self) -> int:
        """Number of requests that the rule has answered, on all ranks."""
        ranks = self._server.ask("GET", f"{SCRIPT_RULES}?ranks=all").values()
        rules = [rule for rank in ranks for rule in _rows(rank, "rules") if rule["id"] == self._id]
        return sum(_counted(rule, "answered") for rule in rules)

    def remove(self) -> None:
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
        self._admin_key = admin_key
        self._tls = tls
        self._before: dict[str, Json] = {}
        """Changed settings with their first values, for `reset`."""
        self._has_scripts: bool | None = None
        self._has_replies = False

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """The `base_url` of the OpenAI SDK."""
        return f"{self.url}/v1"

    def log(self) -> str:
        """Reads the server's stdout and stderr so far; empty once the log file is removed."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def settings(self) -> dict[str, Json]:
        """Settings by their names in docs/configuration.md; secrets are masked."""
        return self.ask("GET", "/admin/config")

    def configure(self, **live: Json) -> None:
        """Changes live settings, `_` for `-` in names.

        ControlError for other settings and wrong values.
        """
        changed = {name.replace("_", "-"): value for name, value in live.items()}
        now = self.settings
        self.ask("POST", "/admin/config?ranks=all", changed)
        self._before = {name: now[name] for name in changed if name in now} | self._before

    @property
    def faults(self) -> list[Rule]:
        """Fault rules in force, in the order of their evaluation."""
        rules = self.settings[FAULT_RULES]
        return [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []

    def fault(self, action: str, **fields: Json) -> None:
        """Appends a fault rule (docs/faults.md): `fault("error", status=429, times=2)`."""
        added: dict[str, Json] = {"action": action, **fields}
        self.configure(fault_rules=[*map(dict, self.faults), added])

    def clear_faults(self) -> None:
        """Removes all fault rules; faults that have begun run to their end."""
        self.configure(fault_rules=[])

    def verdict(self, over: bool = True) -> Verdict:
        """Fetches the verdict. With `over=False`, retries of cut streams may still come."""
        report = self.ask("GET", f"/admin/verdict?over={str(over).lower()}")
        clients = report["clients"]
        told = clients.items() if isinstance(clients, dict) else ()
        return Verdict(
            report["clean"] is True, {name: of for name, of in told if isinstance(of, dict)}
        )

    def reply(
        self,
        when: Rule | None = None,
        *,
        then: Rule | str,
        name: str = "",
        scope: str | None = None,
    ) -> Reply:
        """Sets a rule of a script (docs/scripts.md), tried behind earlier ones and before those of
        files.

        With a `scope` it is for requests with this header X-Understudy-Scope. ControlError for a
        wrong rule.
        """
        rule: dict[str, Json] = {"name": name, "when": dict(when or {})}
        rule["then"] = then if isinstance(then, str) else dict(then)
        query = urlencode({"ranks": "all"} | ({} if scope is None else {"scope": scope}))
        self._has_replies = True
        ranks = self.ask("POST", f"{SCRIPT_RULES}?{query}", rule)
        [added] = _rows(next(iter(ranks.values())), "rules")
        return Reply(self, _counted(added, "id"))

    def requests(
        self, route: str | None = None, contains: str | None = None, scope: str | None = None
    ) -> list[JournalEntry]:
        """Fetches the requests of this path, with this text in the body, of this scope; the oldest
        first.
        """
        given = {"ranks": "all", "route": route, "contains": contains, "scope": scope}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        ranks = self.ask("GET", f"/admin/journal?{query}").values()
        rows = [JournalEntry(**row) for rank in ranks for row in _rows(rank, "entries")]
        return sorted(rows, key=lambda entry: entry.at)

    def assert_called(
        self,
        times: int | None = None,
        *,
        route: str | None = None,
        contains: str | None = None,
        scope: str | None = None,
    ) -> list[JournalEntry]:
        """Returns the requests that fit; AssertionError unless they are `times`, or at least one."""
        __tracebackhide__ = True
        fitting = self.requests(route, contains, scope)
        if len(fitting) == times or (times is None and fitting):
            return fitting
        given = {"route": route, "contains": contains, "scope": scope}
        wanted = {name: value for name, value in given.items() if value is not None}
        raise AssertionError(report(times, wanted, fitting, self.requests()))

    def reset(self) -> None:
        """Restores live settings and fault rules, and forgets clients, requests and set replies.

        Counters of fault rules and of script rules start anew.
        """
        if self._before:
            self.ask("POST", "/admin/config?ranks=all", self._before)
            self._before = {}
        self.ask("DELETE", "/admin/verdict")
        self.ask("DELETE", "/admin/journal?ranks=all")
        if self._has_replies:
            self.ask("DELETE", f"{SCRIPT_RULES}?ranks=all")
            self._has_replies = False
        if self._has_scripts is None:
            self._has_scripts = bool(self.settings["script"])
        if self._has_scripts:
            self.ask("DELETE", "/admin/script")

    def ask(
        self, method: str, path: str, body: Mapping[str, Json] | None = None
    ) -> dict[str, Json]:
        """Sends a request with the admin key; returns the JSON object of the response, or {}.

        Raises ControlError for a status of 400 or more, and when the server does not answer.
        """
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} | (
            {"X-Admin-Key": self._admin_key} if self._admin_key else {}
        )
        connection = self._connection()
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, HTTPException) as error:
            raise ControlError(
                f"{method} {path}: {error!r}; the server's log:\n{self.log()}"
            ) from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise ControlError(f"{method} {path} answered {answer.status}: {text}")
        read = json.loads(text) if text.strip() else {}
        return read if isinstance(read, dict) else {}

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


def _rows(answer: Json, of: str) -> list[dict[str, Any]]:
    found = answer.get(of) if isinstance(answer, dict) else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _counted(client: Mapping[str, Json], of: str) -> int:
    found = client.get(of)
    for table in (client.get("errors"), client.get("faults")):
        if found is None and isinstance(table, dict):
            found = table.get(of)
    return found if isinstance(found, int) else 0
