"""A script file with its compiled rules, and the counters of each rule."""

import logging
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from cachetools import LRUCache
from msgspec import Struct

from app.extensions.faults.fault import FaultScript
from app.extensions.faults.fault_rules import read_fault_rule
from app.extensions.scripts.action import Accepts, Action
from app.extensions.scripts.matched_request import MatchedRequest
from app.extensions.scripts.matching import Conditions, Groups, is_in
from app.extensions.scripts.reader import read_script, rule_location
from app.extensions.scripts.regexes import RegexCompiler
from app.extensions.scripts.rules import Nth, Rule, Script, ScriptError, Then
from app.extensions.scripts.template import TemplateCompiler

log = logging.getLogger(__name__)
Stamp = tuple[int, int, int]
"""Modification time in nanoseconds, size in bytes and inode of a file."""
Counters = LRUCache[tuple[int, bytes], int]
"""Matches by the id of a rule, and the digest of an API key or conversation."""
MAX_NAMED_TOOLS = 8
"""Most offered tools that a message lists."""


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
    """A compiled rule with its counters."""

    def __init__(
        self,
        path: str,
        number: int,
        rule: Rule,
        uid: int,
        now_s: float,
        compiler: ScriptCompiler | None = None,
    ) -> None:
        """`uid` is unique among the rules of all files. A script's rules share a `compiler`.

        Raises:
            ScriptError: The rule is invalid.
        """
        self.path = path
        self.number = number
        self.rule = rule
        self.uid = uid
        outcome = rule.then if isinstance(rule.then, Then) else Then(passes=True)
        compiler = compiler or ScriptCompiler()
        template_nodes = compiler.templates.nodes
        regex_nodes = compiler.regexes.nodes
        try:
            self.conditions = Conditions(rule.when, compiler.regexes)
            self.action = Action(outcome, self.conditions.groups, compiler.templates)
            self._fault_rule = None if outcome.fault is None else read_fault_rule(outcome.fault)
        except ScriptError as error:
            raise ScriptError(f"{self.location}: {error}") from None
        except ValueError as error:
            raise ScriptError(f"{self.location}: then.fault: {error}") from None
        self.template_nodes = compiler.templates.nodes - template_nodes
        self.regex_nodes = compiler.regexes.nodes - regex_nodes
        self.required_tools = [call.name for call in outcome.tool_calls if not call.unchecked]
        self.only_fails = not (self.action.result_kind or outcome.passes)
        """True if the rule has a fault and no answer."""
        nth = rule.when.nth
        if nth is not None and not isinstance(nth, Nth):
            nth = Nth(count=nth)
        self._nth = nth
        self.restart(now_s)

    def restart(self, now_s: float) -> None:
        """Resets the rule's counters and its fault."""
        self.counts = RuleCounts()
        self._match_count = 0
        self.faults: FaultScript | None = None
        if self._fault_rule is not None:
            self.faults = FaultScript([self._fault_rule], now_s)

    @property
    def location(self) -> str:
        """The words that name the rule in errors, logs and reports."""
        return rule_location(self.path, self.number, self.rule.name)

    @property
    def most_searches(self) -> float:
        """Most searches of a text for one request.

        Infinite if deciding may take long: for a fault, a template, and some conditions.
        """
        if self._fault_rule is not None or not self.action.is_constant:
            return inf
        return self.conditions.most_searches

    def has_result_for(self, request: MatchedRequest) -> bool:
        """Returns true if the rule has the kind of result that the request needs, or no result."""
        return self.action.result_kind in ("", request.result_kind)

    def missing_tool_error(self, request: MatchedRequest) -> str:
        """Returns an error if the request does not offer a tool of the rule's calls, else ""."""
        for name in self.required_tools:
            if name not in request.tools:
                offered = ", ".join(list(request.tools)[:MAX_NAMED_TOOLS]) or "none"
                return (
                    f"the rule calls the tool {name!r}, which the request does not offer; "
                    f"offered tools: {offered}"
                )
        return ""

    def match(self, request: MatchedRequest, rng: Random, counters: Counters) -> Groups | None:
        """Returns the captured texts, or None when the rule does not answer.

        Raises:
            SlowRegexError: A search took too long, or no time is left.
        """
        groups = Groups()
        if not self.has_result_for(request) or self.conditions.first_mismatch(request, groups):
            return None
        error = self.missing_tool_error(request)
        if error:
            self.counts.unoffered += 1
            if self.counts.unoffered == 1:
                log.warning("%s: skipped: %s", self.location, error)
            return None
        self._match_count += 1
        groups.count = self._match_count
        if self._nth is not None:
            if self._nth.per != "server":
                is_per_chat = self._nth.per == "conversation"
                scope = request.conversation if is_per_chat else request.client
                counter = (self.uid, scope)
                groups.count = counters.get(counter, 0) + 1
                counters[counter] = groups.count
            if not is_in(groups.count, self._nth.count):
                return None
        chance = self.rule.when.chance
        if chance < 1 and rng.random() >= chance:
            return None
        return groups


class FileRules(NamedTuple):
    """The compiled rules of a file."""

    rules: Sequence[RuleState]
    rng: Random
    unchecked: Sequence[RuleState]
    """Rules whose calls could not be checked, because the file has no schema of a tool."""


class ScriptFile(Struct, eq=False):
    """A script file and its compiled rules. A file without a `model` serves all models."""

    model: str
    path: str
    rng: Random
    rules: Sequence[RuleState] = ()
    stamp: Stamp | None = None
    error: str | None = None
    """Why the newest version of the file is not used."""

    def read(self, uids: Iterator[int], now_s: float, rng: Random, accepts: Accepts) -> FileRules:
        """Reads and compiles the file, whose rules are not used yet.

        Raises:
            ScriptError: The file is invalid; the old rules stay in use.
        """
        self.stamp = stamp_of(self.path)
        unchanged: dict[str, RuleState] = {repr(rule.rule): rule for rule in self.rules}
        rules: list[RuleState] = []
        try:
            script = read_script(self.path)
            compiler = ScriptCompiler()
            for number, rule in enumerate(script.rules, 1):
                state = unchanged.pop(repr(rule), None)
                if state is None:
                    state = RuleState(
                        self.path, number, rule, uid=next(uids), now_s=now_s, compiler=compiler
                    )
                rules.append(state)
            for number, state in enumerate(rules, 1):
                location = rule_location(self.path, number, state.rule.name)
                state.action.check_calls(script.tools, accepts, location)
        except ScriptError as error:
            self.error = str(error)
            raise
        unchecked = [
            state for state in rules if not script.tools.keys() >= set(state.required_tools)
        ]
        return FileRules(rules, random_source(script, rng), unchecked)

    def use(self, file_rules: FileRules) -> None:
        """Uses rules that were read; unchanged rules keep their counters."""
        for number, state in enumerate(file_rules.rules, 1):
            state.number = number
        self.rules = file_rules.rules
        self.rng = file_rules.rng
        self.error = None


def random_source(script: Script, default: Random) -> Random:
    """Returns the source of a script's random draws: seeded by the script, or the default."""
    if script.seed is None:
        return default
    return Random(f"script {script.seed}")


def stamp_of(path: str) -> Stamp | None:
    """Returns what changes with a file; None for a missing file."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
