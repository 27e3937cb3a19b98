"""Controls a running server from a test: settings, faults, replies, journal and verdict."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any

from vllm_understudy.http_client import send
from vllm_understudy.journal import JournalEntry, all_requests, report, unmatched_report
from vllm_understudy.mcp_control import McpServer
from vllm_understudy.rules import (
    SCRIPT_RULES,
    ControlError,
    Json,
    Rule,
    query_of,
    rejection,
    rule_of,
    sequence_of,
)
from vllm_understudy.settings_view import SettingsView

FAULT_RULES = "fault-rules"
CHOKE = "/admin/choke?ranks=all"
SCOPE_HEADER = "X-Understudy-Scope"
UNMATCHED_HEADER = "X-Understudy-Unmatched"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reactions of clients to errors and faults, as in `GET /admin/verdict` (docs/faults.md)."""

    clean: bool
    """True if no client made a mistake."""
    clients: dict[str, dict[str, Any]]
    """Maps the address of a client, or a hash of its key, to its counters."""

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
    """Rules for replies that a test has set with one call. A `with` block removes them."""

    def __init__(self, server: Server, rule_ids: Sequence[int]) -> None:
        self._server = server
        self._ids = list(rule_ids)

    @property
    def answered(self) -> int:
        """Number of requests that the rules have answered, on all ranks."""
        ranks = self._server.ask("GET", f"{SCRIPT_RULES}?ranks=all").values()
        rules = [rule for rank in ranks for rule in rank["rules"] if rule["id"] in self._ids]
        return sum(rule["answered"] for rule in rules)

    def remove(self) -> None:
        """Removes the rules from the server."""
        for rule_id in self._ids:
            self._server.ask("DELETE", f"{SCRIPT_RULES}?ranks=all&id={rule_id}")

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class RuleSetter:
    """Sets replies, for a server or for a scope."""

    def add_rules(
        self, rules: Sequence[Rule], scope: str | None = None, owner: str | None = None
    ) -> Reply:
        """Adds rules of a script, in order."""
        raise NotImplementedError

    def reply(
        self,
        when: Rule | None = None,
        *,
        then: Rule | str,
        name: str = "",
        scope: str | None = None,
        times: int | None = None,
    ) -> Reply:
        """Adds a rule of a script (docs/scripts.md), after earlier rules and before rules of files.

        With a `scope`, it applies to requests with this header X-Understudy-Scope. With `times`, it
        answers that many requests.

        Raises:
            ControlError: the rule is invalid, or can never answer.
        """
        __tracebackhide__ = True
        return self.add_rules([rule_of(when, then, name, times)], scope)

    def replies(
        self, replies: Sequence[Rule | str], when: Rule | None = None, *, scope: str | None = None
    ) -> Reply:
        """Answers the requests that meet `when` one after another, each with the next reply.

        A reply is a text, or the `then` of a rule. A request after the last reply is an error,
        unless a later rule answers it.

        Raises:
            ControlError: a reply is invalid.
        """
        __tracebackhide__ = True
        return self.add_rules(sequence_of(replies, when), scope)


class Scope(RuleSetter):
    """Rules and requests of one test, as a `with` block.

    with understudy.scope() as scope:
        scope.reply(then={"text": "Hello."})
        client = openai.OpenAI(base_url=scope.base_url, default_headers=scope.headers)

    The rules apply to the requests with its `headers` only. The end of the block removes its rules,
    faults and requests, and raises AssertionError if no rule answered one of the requests.
    """

    def __init__(self, server: Server, name: str | None, unmatched: str | None) -> None:
        """`unmatched` (error or pass) decides for its requests; None leaves it to the server."""
        token = secrets.token_hex(4)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        self.name = name or f"scope-{token}"
        if not self.name.isascii() or not self.name.isprintable() or self.name != self.name.strip():
            raise ValueError(f"the name of a scope must be printable ASCII, got {name!r}")
        self.owner = f"{test or 'a test'} ({token})"[-256:]
        self._server = server
        self._unmatched = unmatched
        self._fault_count = 0
        """Faults of this name when this object last set one."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the requests of this scope, such as `default_headers` of an SDK."""
        headers = {SCOPE_HEADER: self.name}
        if self._unmatched is not None:
            headers[UNMATCHED_HEADER] = self._unmatched
        return headers

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._server.url

    @property
    def base_url(self) -> str:
        """The `base_url` of the OpenAI SDK."""
        return self._server.base_url

    @property
    def anthropic_base_url(self) -> str:
        """The `base_url` of the Anthropic SDK, which adds /v1 itself."""
        return self._server.anthropic_base_url

    def add_rules(
        self, rules: Sequence[Rule], scope: str | None = None, owner: str | None = None
    ) -> Reply:
        """Adds rules for the requests of this scope, as `Server.add_rules`."""
        if scope not in (None, self.name):
            raise ValueError(f"the scope {self.name!r} cannot set rules in the scope {scope!r}")
        return self._server.add_rules(rules, self.name, self.owner)

    def fault(self, action: str, **fields: Json) -> None:
        """Adds a fault for the requests of this scope, as `Server.fault`.

        Raises:
            ControlError: another test uses the name of this scope.
        """
        headers = fields.pop("headers", None)
        conditions: dict[str, Json] = {SCOPE_HEADER: self.name}
        if isinstance(headers, dict):
            conditions = {**headers, **conditions}
        with self._server.fault_lock:
            self._check_faults()
            self._server.fault(action, headers=conditions, **fields)
            self._fault_count = self._count_faults()

    def _count_faults(self) -> int:
        """Returns the number of faults with the name of this scope."""
        return sum(_is_of_scope(rule, self.name) for rule in self._server.faults)

    def _has_foreign_faults(self) -> bool:
        """Returns whether another test has set faults with the name of this scope."""
        return self._count_faults() > self._fault_count

    def _check_faults(self) -> None:
        """Raises ControlError if another test has set faults with the name of this scope."""
        if self._has_foreign_faults():
            raise ControlError(
                f"the scope {self.name!r} is in use by another test, which has set faults; "
                "give each test its own scope, or call scope() without a name"
            )

    def requests(self, route: str | None = None, contains: str | None = None) -> list[JournalEntry]:
        """Fetches the requests of this scope, as `Server.requests`."""
        return self._server.requests(route, contains, self.name)

    def assert_called(
        self, times: int | None = None, *, route: str | None = None, contains: str | None = None
    ) -> list[JournalEntry]:
        """Returns the requests of this scope that match the filters, as `Server.assert_called`."""
        __tracebackhide__ = True
        return self._server.assert_called(times, route=route, contains=contains, scope=self.name)

    def unmatched(self) -> list[JournalEntry]:
        """Returns the requests of this scope that no rule answered; they are then expected."""
        return self._server.unmatched(self.name)

    def assert_matched(self) -> None:
        """Raises AssertionError if no rule answered a request of this scope."""
        __tracebackhide__ = True
        self._server.assert_matched(self.name)

    def __enter__(self) -> Scope:
        for rule in self._rules():
            if rule["owner"] != self.owner:
                raise ControlError(
                    f"the scope {self.name!r} is in use by {rule['owner'] or 'another test'}; "
                    "give each test its own scope, or call scope() without a name"
                )
        self._check_faults()
        self._server.has_replies = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        try:
            if error is None:
                self.assert_matched()
        except AssertionError:
            error = AssertionError()
            raise
        finally:
            # If another test has won the name, everything in the scope belongs to that test.
            is_own = all(rule["owner"] in (None, self.owner) for rule in self._rules())
            if is_own and not self._has_foreign_faults():
                # A failed test keeps its requests for the report.
                self._remove(keeps_requests=error is not None)

    def _rules(self) -> list[dict[str, Any]]:
        """Returns the rules with the name of this scope, on all ranks."""
        ranks = self._server.ask("GET", _scope_rules(self.name)).values()
        return [rule for rank in ranks for rule in rank["rules"]]

    def _remove(self, keeps_requests: bool) -> None:
        server = self._server
        server.ask("DELETE", _scope_rules(self.name))
        with server.fault_lock:
            faults = server.faults
            others: list[Json] = [
                dict(rule) for rule in faults if not _is_of_scope(rule, self.name)
            ]
            if len(others) < len(faults):
                server.configure(fault_rules=others)
        if not keeps_requests:
            query = query_of({"ranks": "all", "scope": self.name})
            server.ask("DELETE", f"/admin/journal?{query}")


class Server(RuleSetter):
    """A running server. Tests that share one call `reset` between them."""

    def __init__(
        self,
        port: int,
        log_file: Path,
        admin_key: str | None = None,
        tls: bool = False,
        is_strict: bool = False,
    ) -> None:
        """`is_strict` is true if the server was started with `unmatched: error`."""
        self.port = port
        self.log_file = log_file
        self.mcp = McpServer()
        """An MCP server for the tools of an agent (docs/mcp.md); it starts when it is used."""
        self._admin_key = admin_key
        self._tls = tls
        self._original_settings: dict[str, Json] = {}
        """Original values of changed settings, for `reset`."""
        self._has_scripts: bool | None = None
        self.has_replies = False
        """True once the test has set replies."""
        self.is_strict = is_strict
        self._expected: set[tuple[str, str]] = set()
        """Id and arrival of the unmatched requests that the test expects."""
        self._has_choked = False
        self._owner = f"a test ({secrets.token_hex(4)})"
        """Names the rules of this object on the server."""
        self._rule_ids: set[int] = set()
        """Ids of the rules that were set since the last `reset`."""
        self.fault_lock = RLock()
        """Held while the list of fault rules is read and replaced, for tests in threads."""
        self.log_start = 0
        """Length of the log at the start of the test."""

    @property
    def url(self) -> str:
        """Address of the server."""
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """The `base_url` of the OpenAI SDK."""
        return f"{self.url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """The `base_url` of the Anthropic SDK, which adds /v1 itself."""
        return self.url

    def new_log(self) -> str:
        """Returns what the server has written since the last `reset`, or since its start."""
        return self.log()[self.log_start :]

    def log(self) -> str:
        """Reads the server's stdout and stderr so far; empty once the log file is removed."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_text(errors="replace")

    @property
    def settings(self) -> SettingsView:
        """Settings by their names in docs/configuration.md, with `-` or `_`; secrets are masked."""
        return SettingsView(self.ask("GET", "/admin/config"))

    def configure(self, **live: Json) -> None:
        """Changes live settings, `_` for `-` in names.

        Raises:
            ControlError: a setting is not live, or a value is invalid.
        """
        __tracebackhide__ = True
        changed = {name.replace("_", "-"): value for name, value in live.items()}
        settings = self.settings
        try:
            self.ask("POST", "/admin/config?ranks=all", changed)
        except ControlError:
            # A rank that restarts fails the call, although the others have changed.
            with suppress(ControlError):
                current = self.settings
                names = [name for name in changed if current.get(name) != settings.get(name)]
                self._keep_original(settings, names)
            raise
        self._keep_original(settings, changed)

    def _keep_original(self, settings: SettingsView, names: Iterable[str]) -> None:
        """Notes the values of settings that `reset` restores."""
        for name in names:
            if name in settings:
                self._original_settings.setdefault(name, settings[name])

    @property
    def faults(self) -> list[Rule]:
        """Fault rules in force, in the order of their evaluation."""
        return self.settings[FAULT_RULES] or []

    def fault(self, action: str, **fields: Json) -> None:
        """Appends a fault rule (docs/faults.md): `fault("error", status=429, times=2)`."""
        __tracebackhide__ = True
        rule: dict[str, Json] = {"action": action, **fields}
        with self.fault_lock:
            self.configure(fault_rules=[*map(dict, self.faults), rule])

    def clear_faults(self) -> None:
        """Removes all fault rules; active faults run to their end."""
        self.configure(fault_rules=[])

    @contextmanager
    def choke(
        self,
        *,
        places: int | None = None,
        kv_blocks: int | None = None,
        paused: bool = False,
        seconds: float | None = None,
    ) -> Iterator[None]:
        """Chokes the engine for a `with` block: fewer places or KV blocks, or no new starts.

        Running sequences continue. With `seconds`, the choke ends by itself after this time.

        Raises:
            ControlError: nothing is choked, or the server has no KV cache.
        """
        body: dict[str, Json] = {"places": places, "kv_blocks": kv_blocks, "paused": paused}
        body["seconds"] = seconds
        self._has_choked = True
        try:
            # In the block: if a rank that restarts fails the call, the others are choked.
            self.ask("POST", CHOKE, body)
            yield
        finally:
            self.ask("DELETE", CHOKE)

    def verdict(self, over: bool = True) -> Verdict:
        """Fetches the verdict. With `over=False`, retries of cut streams may still come."""
        verdict = self.ask("GET", f"/admin/verdict?over={str(over).lower()}")
        return Verdict(verdict["clean"], verdict["clients"])

    def add_rules(
        self, rules: Sequence[Rule], scope: str | None = None, owner: str | None = None
    ) -> Reply:
        """Adds rules of a script, in order; see `reply`. `owner` names the test with the scope."""
        __tracebackhide__ = True
        owner = owner or self._owner
        query = query_of({"ranks": "all", "scope": scope, "owner": owner})
        self.has_replies = True
        try:
            ranks = self.ask(
                "POST", f"{SCRIPT_RULES}?{query}", {"rules": [dict(rule) for rule in rules]}
            )
        except ControlError:
            # A rank that restarts fails the call, although the others have the rules.
            with suppress(ControlError):
                self._remove_unknown(owner)
            raise
        rule_ids = [rule["id"] for rule in next(iter(ranks.values()))["rules"]]
        self._rule_ids.update(rule_ids)
        return Reply(self, rule_ids)

    def _remove_unknown(self, owner: str) -> None:
        """Removes the rules of `owner` that no successful call has set."""
        ranks = self.ask("GET", f"{SCRIPT_RULES}?ranks=all").values()
        owned = {rule["id"] for rank in ranks for rule in rank["rules"] if rule["owner"] == owner}
        for rule_id in owned - self._rule_ids:
            self.ask("DELETE", f"{SCRIPT_RULES}?ranks=all&id={rule_id}")

    def scope(self, name: str | None = None, *, unmatched: str | None = None) -> Scope:
        """Returns a part of the server for a `with` block, where tests share the server.

        The default name is unique. `unmatched` is "error" or "pass" for its requests.
        """
        return Scope(self, name, unmatched)

    @contextmanager
    def allow_unmatched(self) -> Iterator[None]:
        """Lets the reply mode answer, for a `with` block, where no rule answers."""
        previous = self.settings["unmatched"]
        self.configure(unmatched="pass")
        try:
            yield
        finally:
            self.configure(unmatched=previous)

    def unmatched(self, scope: str | None = None) -> list[JournalEntry]:
        """Returns the requests that no rule answered; they are then expected.

        A request that is not returned here makes the test fail, even if the client hides the error.
        """
        entries = [entry for entry in self.requests(scope=scope) if entry.unmatched]
        self._expected.update((entry.id, entry.at) for entry in entries)
        return entries

    def assert_matched(self, scope: str | None = None) -> None:
        """Raises AssertionError if no rule answered a request, apart from expected ones."""
        __tracebackhide__ = True
        entries = self.requests(scope=scope)
        unmatched = [
            entry
            for entry in entries
            if entry.unmatched and (entry.id, entry.at) not in self._expected
        ]
        if unmatched:
            # A request that was reported once does not fail the end of the test again.
            self._expected.update((entry.id, entry.at) for entry in unmatched)
            raise AssertionError(unmatched_report(unmatched, entries))

    def skipped_calls(self) -> list[str]:
        """Returns a sentence for each rule whose tool calls a request did not offer."""
        if not self._rule_ids:
            return []
        ranks = self.ask("GET", f"{SCRIPT_RULES}?ranks=all").values()
        sentences = []
        for rule in (rule for rank in ranks for rule in rank["rules"]):
            if rule["id"] in self._rule_ids and rule.get("unoffered"):
                tools = ", ".join(call["name"] for call in rule["then"]["tool_calls"])
                sentences.append(
                    f"rule {rule['number']} calls {tools}, which {rule['unoffered']} matching"
                    " request(s) did not offer as a tool, so the rule was skipped"
                )
        return sentences

    def journal_report(self) -> str:
        """Returns the seed and the requests, each with its rule or error, for a failed test."""
        try:
            return f"seed {self.settings['seed']}; {all_requests(self.requests())}"
        except ControlError as error:
            reason = str(error).partition("; the server's log")[0]
            return f"the journal cannot be read: {reason}"

    def requests(
        self, route: str | None = None, contains: str | None = None, scope: str | None = None
    ) -> list[JournalEntry]:
        """Fetches the received requests, from the oldest to the newest.

        `route` filters by path, `contains` by a text in the body, and `scope` by scope.
        """
        query = query_of({"ranks": "all", "route": route, "contains": contains, "scope": scope})
        ranks = self.ask("GET", f"/admin/journal?{query}").values()
        entries = [JournalEntry.from_row(row) for rank in ranks for row in rank["entries"]]
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
        self._expected.clear()
        if self._has_choked:
            self.ask("DELETE", CHOKE)
            self._has_choked = False
        self.log_start = len(self.log())
        if self.has_replies:
            self.ask("DELETE", f"{SCRIPT_RULES}?ranks=all")
            self._rule_ids.clear()
            self.has_replies = False
        if self._has_scripts is None:
            self._has_scripts = bool(self.settings["script"])
        if self._has_scripts:
            self.ask("DELETE", "/admin/script")

    def ask(self, method: str, path: str, body: Mapping[str, Json] | None = None) -> dict[str, Any]:
        """Sends a request with the admin key; returns the JSON object of the response, or {}.

        Raises:
            ControlError: the status is 400 or more, or the server does not answer with JSON of at
                most `MAX_RESPONSE_BYTES`.
        """
        __tracebackhide__ = True
        data = None
        if body is not None:
            data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._admin_key:
            headers["X-Admin-Key"] = self._admin_key
        try:
            status, content_bytes = send(method, self.url + path, data, headers=headers)
        except OSError as error:
            raise ControlError(
                f"{method} {path}: {error!r}; the server's log:\n{self.log()}"
            ) from error
        text = content_bytes.decode(errors="replace")
        if status >= 400:
            raise ControlError(rejection(f"{method} {path}", status, text))
        if not text.strip():
            return {}
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ControlError(f"{method} {path}: the response is not JSON: {error}") from error
        if not isinstance(content, dict):
            return {}
        return content

    def is_healthy(self) -> bool:
        """Returns True when GET /health answers 200."""
        with suppress(OSError):
            return send("GET", f"{self.url}/health")[0] == 200
        return False


def _without_none(fields: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value is not None}


def _scope_rules(name: str) -> str:
    """Returns the path of the rules of a scope, on all ranks."""
    return f"{SCRIPT_RULES}?{query_of({'ranks': 'all', 'scope': name})}"


def _is_of_scope(rule: Rule, scope: str) -> bool:
    """Returns whether a fault rule was added for a scope."""
    headers = rule.get("headers")
    return isinstance(headers, Mapping) and headers.get(SCOPE_HEADER) == scope


def _count(counters: Mapping[str, Any], name: str) -> int:
    """Returns a counter, which may be among the errors or the faults; 0 without one."""
    for table in (counters, counters["errors"], counters["faults"]):
        count = table.get(name)
        if isinstance(count, int):
            return count
    return 0
