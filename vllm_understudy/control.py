"""A running server as a test sees it: where it is, what is to go wrong, and how the client took it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TypeAlias

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
Rule: TypeAlias = Mapping[str, Json]
FAULT_RULES = "fault-rules"
TIMEOUT_S = 10.0


class ControlError(Exception):
    """The server refused what a test asked of it, or is not there; the text says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How clients took errors and faults; `GET /admin/verdict` in words (docs/faults.md)."""

    clean: bool
    clients: dict[str, dict[str, Json]]
    """What was counted of each, by its address or a hash of its key."""

    @property
    def findings(self) -> list[str]:
        """What each client did wrong, a line each."""
        told = []
        for client, counted in self.clients.items():
            found = counted.get("findings")
            for finding in found if isinstance(found, list) else ():
                if isinstance(finding, dict):
                    told.append(f"{client}: {finding['kind']} ({finding['count']}): {finding['what']}")
        return told

    def count(self, of: str) -> int:
        """Over all clients: their `requests`, those of a status (`503`), or of a fault by name or action."""
        return sum(_counted(counted, of) for counted in self.clients.values())

    def __str__(self) -> str:
        return "\n".join(self.findings) or "clean"


class Server:
    """A server of one test, or of several that do not disturb one another."""

    def __init__(self, port: int, log_file: Path, admin_key: str | None = None, tls: bool = False) -> None:
        self.port = port
        self.log_file = log_file
        self._admin_key = admin_key
        self._tls = tls
        self._before: dict[str, Json] = {}
        """What `reset` restores: settings that were changed, as they were at first."""
        self._has_scripts: bool | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """What the OpenAI SDK calls so."""
        return f"{self.url}/v1"

    def log(self) -> str:
        """All that the server has written to stdout and stderr so far; nothing when it is gone."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def settings(self) -> dict[str, Json]:
        """All settings, by the names of docs/configuration.md; secrets masked."""
        return self.ask("GET", "/admin/config")

    def configure(self, **live: Json) -> None:
        """Change live settings, `_` for `-` in their names. ControlError for others, and for wrong values."""
        changed = {name.replace("_", "-"): value for name, value in live.items()}
        now = self.settings
        self.ask("POST", "/admin/config?ranks=all", changed)
        self._before = {name: now[name] for name in changed if name in now} | self._before

    @property
    def faults(self) -> list[Rule]:
        """The rules in force, in the order in which they are asked."""
        rules = self.settings[FAULT_RULES]
        return [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []

    def fault(self, action: str, **fields: Json) -> None:
        """Add a rule of docs/faults.md behind those in force: `fault("error", status=429, times=2)`."""
        added: dict[str, Json] = {"action": action, **fields}
        self.configure(fault_rules=[*map(dict, self.faults), added])

    def clear_faults(self) -> None:
        """From now on nothing goes wrong; what is going wrong does to its end."""
        self.configure(fault_rules=[])

    def verdict(self, over: bool = True) -> Verdict:
        """How clients took it; `over=False` still waits for retries of streams that were cut off."""
        report = self.ask("GET", f"/admin/verdict?over={str(over).lower()}")
        clients = report["clients"]
        told = clients.items() if isinstance(clients, dict) else ()
        return Verdict(report["clean"] is True, {name: of for name, of in told if isinstance(of, dict)})

    def reset(self) -> None:
        """Live settings and rules as they were at the start; rules count from one; clients are forgotten.

        So do the rules of scripts.
        """
        if self._before:
            self.ask("POST", "/admin/config?ranks=all", self._before)
            self._before = {}
        self.ask("DELETE", "/admin/verdict")
        if self._has_scripts is None:
            self._has_scripts = bool(self.settings["script"])
        if self._has_scripts:
            self.ask("DELETE", "/admin/script")

    def ask(self, method: str, path: str, body: Mapping[str, Json] | None = None) -> dict[str, Json]:
        """An operator's request, with the admin key; the JSON object that is answered, if any."""
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
            raise ControlError(f"{method} {path}: {error!r}; the server's log:\n{self.log()}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise ControlError(f"{method} {path} answered {answer.status}: {text}")
        read = json.loads(text) if text.strip() else {}
        return read if isinstance(read, dict) else {}

    def is_healthy(self) -> bool:
        """GET /health answers 200."""
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


def _counted(client: Mapping[str, Json], of: str) -> int:
    found = client.get(of)
    for table in (client.get("errors"), client.get("faults")):
        if found is None and isinstance(table, dict):
            found = table.get(of)
    return found if isinstance(found, int) else 0
