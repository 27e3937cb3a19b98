"""A script file with its compiled rules, and the counters of each rule."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from cachetools import LRUCache
from msgspec import Struct, field

from app.extensions.faults.fault import FaultScript
from app.extensions.faults.fault_rules import read_fault_rule
from app.extensions.scripts.action import Accepts, Action
from app.extensions.scripts.matched_request import MatchedRequest
from app.extensions.scripts.matching import Conditions, Groups, is_in
from app.extensions.scripts.reader import read_script, rule_location
from app.extensions.scripts.regexes import RegexCompiler
from app.extensions.scripts.rules import (
    COUNT_TOKENS,
    Nth,
    Rule,
    RuleFailureError,
    Script,
    ScriptError,
    Then,
    When,
)
from app.extensions.scripts.shared_uses import SharedUses
from app.extensions.scripts.template import TemplateCompiler

log = logging.getLogger(__name__)
Stamp = tuple[int, int, int]
"""Modification time in nanoseconds, size in bytes and inode of a file."""
CounterKey = tuple[int, bytes]
"""The id of a rule, and the digest of an API key, a conversation or a scope."""
Counters = LRUCache[CounterKey, int]
"""Matches and answers of rules, where they are counted apart for keys or scopes."""
USES = b"uses"
"""Precedes the digest of a scope in the key of a counter of answers."""
MAX_RESULTS_WITHOUT_CONDITION = 50
"""Results of tools in a conversation after which a rule without conditions calls no more tools.

An agent would otherwise call them forever.
"""
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
        self.rule = rule
        self.set_number(number)
        self.uid = uid
        self.scope: str | None = None
        """Scope of all requests of a rule that a test has set; None for every scope."""
        self.identity = ""
        """Text that is equal for this rule on all ranks, and different for other rules."""
        self.shared_uses: SharedUses | None = None
        """Counts the answers on all ranks; None on a server of one rank."""
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
        self.counts_tokens = COUNT_TOKENS in (rule.when.api or ())
        """True if the rule names the API that counts tokens."""
        self.answers_refused = self.counts_tokens or outcome.blocks is not None
        """True if the rule may answer requests that vLLM rejects."""
        self.only_fails = not (self.action.result_kind or outcome.passes)
        """True if the rule has a fault and no answer."""
        nth = rule.when.nth
        if nth is not None and not isinstance(nth, Nth):
            nth = Nth(count=nth)
        self._nth = nth
        self.counts_all_matches = nth is not None
        """True if the rule also counts the matching requests that another rule answers."""
        self.counts_matches = nth is not None or not self.action.is_constant
        """True if `nth` or a template reads the count of matches."""
        self.is_unconditional = rule.when == When() and not self.only_fails
        """True if the rule has no condition."""
        self.always_answers = (
            nth is None and rule.times is None and rule.when.chance == 1 and not self.only_fails
        )
        """True if the rule answers each request that meets its conditions."""
        self.answers_everything = (
            self.is_unconditional and self.always_answers and not self.required_tools
        )
        """True if the rule answers each request that needs its kind of result."""
        self.may_loop = bool(outcome.tool_calls) and self.is_unconditional and rule.times is None
        """True if the rule would call tools forever, while a client sends their results."""
        self.restart(now_s)

    def restart(self, now_s: float) -> None:
        """Resets the rule's counters and its fault."""
        self.counts = RuleCounts()
        self._match_count = 0
        self.use_count = 0
        """Answers of a rule with `times`, without those in other scopes."""
        self.faults: FaultScript | None = None
        if self._fault_rule is not None:
            self.faults = FaultScript([self._fault_rule], now_s)

    def set_number(self, number: int) -> None:
        """Sets the number of the rule among those of its path."""
        self.number = number
        self.location = rule_location(self.path, number, self.rule.name)
        """The words that name the rule in errors, logs and reports."""

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
        if request.is_refused and not self.answers_refused:
            return False
        if request.api == COUNT_TOKENS and not self.counts_tokens:
            return False
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

    def check_loop(self, request: MatchedRequest) -> None:
        """Raises `RuleFailureError` if the rule, which `may_loop`, has called many tools."""
        results = len(request.by_role.get("tool", ()))
        if results >= MAX_RESULTS_WITHOUT_CONDITION:
            raise RuleFailureError(
                f"the rule has no condition, so it kept calling tools until the conversation "
                f"contained {results} results; add times: 1 or when: {{tool_result: false}}"
            )

    def matching_groups(self, request: MatchedRequest) -> Groups | None:
        """Returns the captured texts if the request meets all conditions but `nth` and `chance`.

        Returns None otherwise. May pause.

        Raises:
            SlowRegexError: A search took too long, or no time is left.
        """
        if not self.has_result_for(request):
            return None
        groups = Groups()
        if self.conditions.first_mismatch(request, groups):
            return None
        error = ""
        if self.required_tools:
            error = self.missing_tool_error(request)
        if error:
            self.counts.unoffered += 1
            if self.counts.unoffered == 1:
                log.warning("%s was skipped: %s", self.location, error)
            return None
        return groups

    def count_match(self, request: MatchedRequest, counters: Counters) -> int:
        """Counts a request that meets the conditions, and returns its number from 1."""
        key = self._match_key(request)
        if key is None:
            self._match_count += 1
            return self._match_count
        number = counters.get(key, 0) + 1
        counters[key] = number
        return number

    def match_count(self, request: MatchedRequest, counters: Counters) -> int:
        """Returns how many requests have met the conditions, in the scope of `nth`."""
        key = self._match_key(request)
        if key is None:
            return self._match_count
        return counters.get(key, 0)

    def _match_key(self, request: MatchedRequest) -> CounterKey | None:
        if self._nth is not None and self._nth.per != "server":
            is_per_chat = self._nth.per == "conversation"
            return self.uid, request.conversation if is_per_chat else request.client
        if not request.scope or request.scope == self.scope:
            return None
        return self.uid, request.scope_digest

    def is_nth(self, number: int) -> bool:
        """Returns whether `nth` holds for the match with this number."""
        return self._nth is None or is_in(number, self._nth.count)

    def is_due(self, number: int, request: MatchedRequest, counters: Counters) -> bool:
        """Returns whether `nth` and `times` let the rule answer the match with this number."""
        return self.is_nth(number) and self.has_answers_left(request, counters)

    def has_answers_left(self, request: MatchedRequest, counters: Counters) -> bool:
        """Returns whether `times` allows one more answer in the scope of the request."""
        return self.rule.times is None or self._uses(request, counters) < self.rule.times

    def take_answer(self, request: MatchedRequest, counters: Counters) -> bool:
        """Counts an answer, as far as `times` limits them.

        Returns False where no answer is left: another rank may have given the last one.
        """
        limit = self.rule.times
        if limit is None:
            return True
        if self.shared_uses is not None:
            return self.shared_uses.take(self.identity, limit, scope=self._own_scope(request))
        uses = self._uses(request, counters) + 1
        if not self._has_own_count(request):
            self.use_count = uses
        else:
            counters[self.uid, USES + request.scope_digest] = uses
        return uses <= limit

    def forget_answers(self) -> None:
        """Makes room for the counts of other rules, once this one is removed."""
        if self.shared_uses is not None:
            self.shared_uses.remove(self.identity)

    def _uses(self, request: MatchedRequest, counters: Counters) -> int:
        if self.shared_uses is not None:
            return self.shared_uses.count(self.identity, self._own_scope(request))
        if not self._has_own_count(request):
            return self.use_count
        return counters.get((self.uid, USES + request.scope_digest), 0)

    def _has_own_count(self, request: MatchedRequest) -> bool:
        """Returns whether the answers in the scope of a request are counted apart."""
        return bool(request.scope) and request.scope != self.scope

    def _own_scope(self, request: MatchedRequest) -> str | None:
        if not self._has_own_count(request):
            return None
        return request.scope


class RuleContext(Struct, frozen=True):
    """Parts of the server that all rules use."""

    rng: Random
    """Source of the random draws of rules without a seed."""
    now: Callable[[], float]
    """Returns monotonic seconds."""
    accepts: Accepts
    uses: SharedUses | None = None
    """Counts answers of rules with `times` on all ranks; None on a server of one rank."""
    uids: Iterator[int] = field(default_factory=count)

    def new_state(self, path: str, number: int, rule: Rule, compiler: ScriptCompiler) -> RuleState:
        """Compiles a rule. Raises `ScriptError` for an invalid one."""
        state = RuleState(
            path, number, rule, uid=next(self.uids), now_s=self.now(), compiler=compiler
        )
        state.shared_uses = self.uses
        return state


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
    script: Script | None = None
    """The content of the file when it was last read."""

    def read(self, context: RuleContext) -> FileRules:
        """Reads and compiles the file, whose rules are not used yet.

        Raises:
            ScriptError: The file is invalid; the old rules stay in use.
        """
        self.stamp = stamp_of(self.path)
        try:
            script = read_script(self.path)
            file_rules = self.compile(script, context)
        except ScriptError as error:
            self.error = str(error)
            raise
        self.script = script
        return file_rules

    def compile(self, script: Script, context: RuleContext) -> FileRules:
        """Compiles a script, whose rules are not used yet.

        Raises:
            ScriptError: The script is invalid.
        """
        unchanged: dict[str, RuleState] = {repr(rule.rule): rule for rule in self.rules}
        equal_rules: Counter[str] = Counter()
        rules: list[RuleState] = []
        compiler = ScriptCompiler()
        for number, rule in enumerate(script.rules, 1):
            text = repr(rule)
            state = unchanged.pop(text, None)
            if state is None:
                state = context.new_state(self.path, number, rule, compiler)
                state.identity = f"{self.path} {equal_rules[text]} {text}"
            equal_rules[text] += 1
            rules.append(state)
        for number, state in enumerate(rules, 1):
            location = rule_location(self.path, number, state.rule.name)
            state.action.check_calls(script.tools, context.accepts, location)
        unchecked = [
            state for state in rules if not script.tools.keys() >= set(state.required_tools)
        ]
        return FileRules(rules, random_source(script, context.rng), unchecked)

    def use(self, file_rules: FileRules) -> None:
        """Uses rules that were read; unchanged rules keep their counters."""
        for number, state in enumerate(file_rules.rules, 1):
            state.set_number(number)
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
