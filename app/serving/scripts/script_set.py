"""The scripts of a server: picks the rule for a request and counts each rule's answers.

Files are read at start, and again when they change.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple, cast

import gevent
import msgspec
from cachetools import LRUCache
from gevent.lock import BoundedSemaphore
from msgspec import Struct, to_builtins

from app.base.clock.pause import call_off_hub
from app.engine.core.constraints import SchemaCompiler, SchemaError
from app.engine.forms.schema import Schemas
from app.engine.forms.schema.keywords import JSON
from app.serving.api.fault import Fault
from app.serving.api.reply_rules import ScriptedAnswer
from app.serving.faults.fault import FaultScript
from app.serving.http.context import SCOPE
from app.serving.scripts.action import Accepts, Action
from app.serving.scripts.matching import (
    KNOWN,
    MAX_SCRIPT_REGEX_NODES,
    BudgetSpent,
    Conditions,
    Groups,
    MatchedRequest,
    RegexCompiler,
    TooSlow,
    is_in,
)
from app.serving.scripts.rules import (
    Nth,
    Rule,
    ScriptError,
    ScriptFailure,
    Then,
    place,
    read_script,
    script_of,
)
from app.serving.scripts.template import (
    BUDGET,
    MAX_SCRIPT_NODES,
    Budget,
    TemplateCompiler,
    random_functions,
)
from config.declaration import ConfigError
from config.fault_rules import read_fault_rule
from config.sections.reply import ScriptSettings

log = logging.getLogger(__name__)
Stamp = tuple[int, int, int]
"""Modification time in nanoseconds, size in bytes and inode of a file."""
LOOKS_S = 1.0
"""Seconds between checks of the files for changes."""
RUN_TIME = "at run time"
"""Stands for the path of a file in messages about rules that were set at run time."""
MOST_ADDED_BYTES, RULE_BYTES = 2 << 20, 200
"""Most JSON of all rules set at run time, in bytes; each is reckoned with `RULE_BYTES` more."""
MOST_COUNTERS, COUNTER_BYTES = 8192, 256
"""Most counters per key or conversation, by last use, and the estimated memory of one in bytes."""


class Decision(NamedTuple):
    """A decision about a request: an answer, a fault, or both."""

    rule: "RuleState"
    answer: ScriptedAnswer | None
    fault: Fault | None


class RuleCounts(Struct):
    """Counters of a rule in the body of GET /admin/script."""

    answered: int = 0
    failed: int = 0
    too_slow: int = 0
    unoffered: int = 0
    """Matching requests that did not offer a tool that the rule calls."""


class ScriptCompiler:
    """Compiles the templates and regexes of one script, which share limits on their size."""

    def __init__(self) -> None:
        self.templates = TemplateCompiler()
        self.regexes = RegexCompiler()


class RuleState:
    """A compiled rule of a file, with its counters. ScriptError for an invalid rule."""

    def __init__(
        self,
        path: str,
        number: int,
        rule: Rule,
        uid: int,
        now_s: float,
        compiler: ScriptCompiler | None = None,
    ) -> None:
        """`uid` is unique among the rules of all files.

        The rules of a script share a `compiler`.
        """
        self.path = path
        self.number = number
        self.rule = rule
        self.uid = uid
        then = rule.then if isinstance(rule.then, Then) else Then(passes=True)
        compiler = compiler or ScriptCompiler()
        template_nodes = compiler.templates.nodes
        regex_nodes = compiler.regexes.nodes
        try:
            self.conditions = Conditions(rule.when, compiler.regexes)
            self.action = Action(then, self.conditions.groups, compiler.templates)
            self._fault_rule = None if then.fault is None else read_fault_rule(then.fault)
        except ValueError as error:
            key = "" if isinstance(error, ScriptError) else "then.fault: "
            raise ScriptError(f"{self.place}: {key}{error}") from None
        self.template_nodes = compiler.templates.nodes - template_nodes
        self.regex_nodes = compiler.regexes.nodes - regex_nodes
        self.needed_tools = [call.name for call in then.tool_calls if not call.unchecked]
        self.only_fails = not (self.action.result or then.passes)
        """True if the rule has a fault and no answer."""
        nth = rule.when.nth
        self._nth = nth if nth is None or isinstance(nth, Nth) else Nth(count=nth)
        self.restart(now_s)

    def restart(self, now_s: float) -> None:
        self.counts = RuleCounts()
        self._met = 0
        self.faults = None if self._fault_rule is None else FaultScript([self._fault_rule], now_s)

    @property
    def place(self) -> str:
        return place(self.path, self.number, self.rule.name)

    def concerns(self, request: MatchedRequest) -> bool:
        """True if the rule has the result that the request wants, or none."""
        return self.action.result in ("", request.wants)

    def missing_tool(self, request: MatchedRequest) -> str:
        """Returns an error that names a tool that the request does not offer; empty when none is
        missing.
        """
        name = next((name for name in self.needed_tools if name not in request.tools), None)
        if name is None:
            return ""
        there = ", ".join(list(request.tools)[:8]) or "none"
        return (
            f"it calls the tool {name!r}, which is none of those that the request offers: {there}"
        )

    def match(
        self, request: MatchedRequest, rng: Random, counters: LRUCache[tuple[int, bytes], int]
    ) -> Groups | None:
        """Returns the captured texts; None when the rule does not answer. May raise TooSlow."""
        groups = Groups()
        if not self.concerns(request) or self.conditions.misfit(request, groups):
            return None
        if missing := self.missing_tool(request):
            self.counts.unoffered += 1
            if self.counts.unoffered == 1:
                log.warning("%s: passed over: %s", self.place, missing)
            return None
        self._met += 1
        groups.count = self._met
        if self._nth is not None:
            if self._nth.per != "server":
                scope = (
                    self.uid,
                    request.conversation if self._nth.per == "conversation" else request.client,
                )
                groups.count = counters[scope] = counters.get(scope, 0) + 1
            if not is_in(groups.count, self._nth.count):
                return None
        chance = self.rule.when.chance
        return groups if chance >= 1 or rng.random() < chance else None


class ScriptFile(Struct, eq=False):
    """A script file and its compiled rules. A file without a `model` serves all models."""

    model: str
    path: str
    rng: Random
    rules: Sequence[RuleState] = ()
    stamp: Stamp | None = None
    error: str | None = None
    """Why the newest version of the file is not used."""

    def load(
        self, uids: Iterator[int], now_s: float, rng: Random, accepts: Accepts
    ) -> list[RuleState]:
        """Reads the file; known rules keep their counters.

        Returns rules whose calls are unchecked.
        """
        self.stamp = stamp_of(self.path)
        known: dict[str, RuleState | None] = {repr(each.rule): each for each in self.rules}
        try:
            script = read_script(self.path)
            compiler = ScriptCompiler()
            rules = [
                known.pop(repr(rule), None)
                or RuleState(self.path, number, rule, next(uids), now_s, compiler)
                for number, rule in enumerate(script.rules, 1)
            ]
            for number, rule in enumerate(rules, 1):
                rule.action.check_calls(
                    script.tools, accepts, place(self.path, number, rule.rule.name)
                )
        except ScriptError as error:
            self.error = str(error)
            raise
        for number, rule in enumerate(rules, 1):
            rule.number = number
        self.rules, self.error = rules, None
        self.rng = rng if script.seed is None else Random(f"script {script.seed}")
        return [rule for rule in rules if not script.tools.keys() >= set(rule.needed_tools)]


class AddedRule(Struct, eq=False):
    """A rule that was set at run time, with its `document` in a file's form and its size as JSON."""

    id: int
    scope: str | None
    """Header X-Understudy-Scope of its requests; None for all requests."""
    document: Mapping[str, object]
    size_bytes: int
    rng: Random
    state: RuleState

    def row(self) -> dict[str, object]:
        return {
            "id": self.id,
            "scope": self.scope,
            **self.document,
            **to_builtins(self.state.counts),
        }


def listing(rules: Sequence[RuleState]) -> str:
    told = [
        f"rule {each.number}" + f" ({each.rule.name})" * bool(each.rule.name) for each in rules[:20]
    ]
    return ", ".join(told) + (" and others" if len(rules) > 20 else "")


class ScriptSet:
    """All scripts of a server. `now` returns monotonic seconds, `unix` Unix seconds."""

    limit_bytes = MOST_COUNTERS * COUNTER_BYTES

    def __init__(
        self,
        files: Sequence[tuple[str, str]],
        rng: Random,
        now: Callable[[], float],
        unix: Callable[[], float],
        accepts: Accepts,
    ) -> None:
        """`files` lists model (empty for all) and path, in order.

        ScriptError for an invalid file.
        """
        self._now, self._unix, self._rng, self._accepts = now, unix, rng, accepts
        self._uids, self._numbers = count(), count(1)
        self._counters: LRUCache[tuple[int, bytes], int] = LRUCache(MOST_COUNTERS)
        """Matches by rule, and API key or conversation."""
        self.unanswered = 0
        self._has_warned_of_budget = False
        self._watch: gevent.Greenlet | None = None
        self._compiling = BoundedSemaphore()
        """Held while rules of run time compile:

        one thread competes with the event loop at a time.
        """
        self.added: tuple[AddedRule, ...] = ()
        """Rules set at run time, which come before the files' rules."""
        self.files = [ScriptFile(model, path, rng) for model, path in files]
        for file in self.files:
            self._load(file)

    def _load(self, file: ScriptFile) -> None:
        if later := file.load(self._uids, self._now(), self._rng, self._accepts):
            log.warning(
                "script %s: the tool calls of %s are checked only when requests offer the tools; "
                "with their schemas under `tools` they are checked now",
                file.path,
                listing(later),
            )

    @property
    def size_bytes(self) -> int:
        return len(self._counters) * COUNTER_BYTES

    @property
    def rules(self) -> int:
        return len(self.added) + sum(len(file.rules) for file in self.files)

    def read_rules(self, document: Mapping[str, object], scope: str | None) -> list[AddedRule]:
        """Compiles rules for run time, without use yet, in a native thread.

        ScriptError as for a file.
        """
        with self._compiling:
            return call_off_hub(self._read_rules, document, scope)

    def _read_rules(self, document: Mapping[str, object], scope: str | None) -> list[AddedRule]:
        given = document.get("rules")
        rows = given if isinstance(given, list) else ()
        try:
            script = script_of(document, RUN_TIME)
            rng = self._rng if script.seed is None else Random(f"script {script.seed}")
            compiler = ScriptCompiler()
            read: list[AddedRule] = []
            for number, (rule, row) in enumerate(zip(script.rules, rows, strict=True), 1):
                state = RuleState(RUN_TIME, number, rule, next(self._uids), self._now(), compiler)
                state.action.check_calls(script.tools, self._accepts, state.place)
                size_bytes = RULE_BYTES + len(msgspec.json.encode(row))
                state.number = next(self._numbers)
                read.append(AddedRule(state.number, scope, row, size_bytes, rng, state))
        except RecursionError:
            raise ScriptError(f"script {RUN_TIME}: is nested too deeply") from None
        return read

    def use_rules(self, rules: Sequence[AddedRule]) -> None:
        """Replaces all rules of run time.

        ScriptError, without a change, when they are too large together.
        """
        if sum(each.size_bytes for each in rules) > MOST_ADDED_BYTES:
            raise ScriptError(
                f"script {RUN_TIME}: the rules have more than {MOST_ADDED_BYTES >> 20} MiB together"
            )
        if sum(rule.state.template_nodes for rule in rules) > MAX_SCRIPT_NODES:
            raise ScriptError(
                f"script {RUN_TIME}: the templates have more than {MAX_SCRIPT_NODES} nodes together"
            )
        if sum(rule.state.regex_nodes for rule in rules) > MAX_SCRIPT_REGEX_NODES:
            raise ScriptError(
                f"script {RUN_TIME}: the regexes have more than {MAX_SCRIPT_REGEX_NODES} parts together"
            )
        self.added = tuple(rules)

    def _candidates(self, request: MatchedRequest) -> Iterator[tuple[RuleState, Random]]:
        """Yields the rules for a request's scope and model, in order, with their random sources."""
        scope = request.facts.header(SCOPE) if self.added else None
        for each in self.added:
            if each.scope in (None, scope):
                yield each.state, each.rng
        for file in self.files:
            if file.model in ("", request.facts.model):
                for rule in file.rules:
                    yield rule, file.rng

    def decide(self, request: MatchedRequest, own: Random | None = None) -> Decision | None:
        """Returns the decision of the first matching rule; None without a match. Pauses through
        `request.breathe`.

        `own` draws the random values of a request with a seed or greedy decoding. ScriptFailure
        when the rule cannot answer.
        """
        for rule, rng in self._candidates(request):
            decision = self._decision(rule, request, own or rng)
            if decision is not None:
                rule.counts.answered += 1
                return decision
            request.breathe()
        self.unanswered += 1
        return None

    def _decision(self, rule: RuleState, request: MatchedRequest, rng: Random) -> Decision | None:
        try:
            groups = rule.match(request, rng, self._counters)
        except BudgetSpent as error:
            rule.counts.too_slow += 1
            if not self._has_warned_of_budget:
                self._has_warned_of_budget = True
                log.warning(
                    "%s: %s; rules with conditions on texts are passed over", rule.place, error
                )
            return None
        except TooSlow as error:
            rule.counts.too_slow += 1
            if rule.counts.too_slow == 1:
                text = "%s: the regex %.60r takes too long, the rule is passed over"
                log.warning(text, rule.place, str(error))
            return None
        if groups is None:
            return None
        faults = rule.faults
        fault = None if faults is None else faults.fault_for(request.facts, rng, self._now())
        if rule.only_fails:
            return None if fault is None else Decision(rule, None, fault)
        try:
            answer = rule.action.answer(request, self._values(request, groups, rng), self._accepts)
        except (ScriptFailure, ScriptError) as error:
            rule.counts.failed += 1
            if rule.counts.failed == 1:
                log.warning("%s: %s", rule.place, error)
            raise ScriptFailure(f"{rule.place}: {error}") from None
        return Decision(rule, answer, fault)

    def _values(self, request: MatchedRequest, groups: Groups, rng: Random) -> dict[str, object]:
        """Returns what templates can name (docs/scripts.md)."""
        results, unix_s = request.tool_results, self._unix()
        return {
            "match": groups.texts,
            "message": request.last[:KNOWN],
            "user": request.user[:KNOWN],
            "tool_result": results[-1].text[:KNOWN] if results else "",
            "model": request.facts.model,
            "api": request.api,
            "turn": request.turn,
            "count": groups.count,
            "now": datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds"),
            "unix": unix_s,
            "header": request.facts.header,
            BUDGET: Budget(request.breathe),
            **random_functions(rng),
        }

    def refresh(self) -> None:
        """Reads changed files again. Logs errors, and keeps the old rules of an invalid file."""
        for file in self.files:
            if file.stamp == stamp_of(file.path):
                continue
            try:
                self._load(file)
            except ScriptError as error:
                log.error("%s; the rules of before stay", error)
            else:
                log.info("script %s: read again, %d rules", file.path, len(file.rules))

    def start(self) -> None:
        """Reads changed files again from now on, until `close`."""

        def watch() -> None:
            while True:
                gevent.sleep(LOOKS_S)
                try:
                    call_off_hub(self.refresh)
                except Exception:  # an invalid file must not stop the watch
                    log.exception("a script could not be read again")

        self._watch = gevent.spawn(watch)

    def close(self) -> None:
        """Stops watching, and logs the rules that never answered."""
        if self._watch is not None:
            self._watch.kill(block=False)
        for line in self.unused():
            log.warning("%s", line)

    def restart(self) -> None:
        self._counters.clear()
        self.unanswered = 0
        self._has_warned_of_budget = False
        for rule in (
            *(each.state for each in self.added),
            *(it for file in self.files for it in file.rules),
        ):
            rule.restart(self._now())

    def report(self) -> dict[str, object]:
        """Body of GET /admin/script; `unanswered` counts prompts that no rule has answered."""
        files = [
            {
                "path": file.path,
                "model": file.model or None,
                "error": file.error,
                "rules": [
                    {"rule": rule.number, "name": rule.rule.name, **to_builtins(rule.counts)}
                    for rule in file.rules
                ],
            }
            for file in self.files
        ]
        return {"files": files, "unanswered": self.unanswered}

    def unused(self) -> Iterator[str]:
        """Yields a line for each file with rules that never answered."""
        for file in self.files:
            if never := [rule for rule in file.rules if not rule.counts.answered]:
                of = f"{len(never)} of {len(file.rules)} rules never answered"
                yield f"script {file.path}: {of}: {listing(never)}"


def stamp_of(path: str) -> Stamp | None:
    try:
        at = Path(path).stat()
    except OSError:
        return None
    return at.st_mtime_ns, at.st_size, at.st_ino


def open_scripts(
    settings: ScriptSettings, schemas: SchemaCompiler, rng: Random, now: Callable[[], float]
) -> ScriptSet:
    """Opens the scripts of the settings. ConfigError for an invalid script."""
    try:
        return ScriptSet(settings.files, rng, now, time.time, accepting(schemas))
    except ScriptError as error:
        raise ConfigError(f"setting script: {error}") from None


def check_scripts(settings: ScriptSettings) -> None:
    """Raises ConfigError for the first invalid script. Logs no warnings; `open_scripts` does."""
    for _, path in settings.files:
        try:
            ScriptFile("", path, Random(0)).load(count(), 0.0, Random(0), accepting(Schemas()))
        except ScriptError as error:
            raise ConfigError(f"setting script: {error}") from None


def accepting(schemas: SchemaCompiler) -> Accepts:
    """Returns a check of a value against a schema; the check raises ScriptError for an invalid
    schema.
    """

    def accepts(schema: object, value: object) -> bool:
        try:
            return schemas.compile(schema, lenient=True).accepts(cast(JSON, value))
        except SchemaError as error:
            raise ScriptError(f"a schema of a tool cannot be used: {error}") from None

    return accepts
