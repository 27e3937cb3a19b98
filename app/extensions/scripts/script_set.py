"""The scripts of a server: picks the rule for a request and counts each rule's answers.

Start reading at `ScriptSet.decide`. `RuleFiles` has the rules of files, and `AddedRules` those that
were set at run time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import TypeAlias, cast

from msgspec import Struct

from app.core.api.reply_rules import ScriptedAnswer
from app.core.engine.constraints import Constraints, SchemaError
from app.core.server.http.context import SCOPE
from app.core.server.http.fault import Fault
from app.extensions.forms.schema import Schemas
from app.extensions.forms.schema.keywords import JSON
from app.extensions.scripts.added_rules import RUN_TIME, AddedRules
from app.extensions.scripts.matched_request import (
    MAX_VALUE_CHARACTERS,
    BudgetSpentError,
    MatchedRequest,
    SlowRegexError,
    no_pause,
)
from app.extensions.scripts.matching import Groups
from app.extensions.scripts.rule_files import RuleFiles
from app.extensions.scripts.rules import RuleFailureError, Script, ScriptError
from app.extensions.scripts.script_file import Counters, RuleContext, RuleState, ScriptFile
from app.extensions.scripts.settings import ScriptSettings
from app.extensions.scripts.template_environment import RandomFunctions
from app.extensions.scripts.template_limits import BUDGET_KEY, Budget
from config.declaration import ConfigError

log = logging.getLogger(__name__)
MAX_COUNTERS = 8192
"""Most counters per key or conversation, by last use."""
COUNTER_BYTES = 256
"""Estimated memory of one counter."""
MAX_RULES_AT_ONCE = 200
"""Most rules that are compared with a plain request without a pause, in about a millisecond."""
MAX_SEARCHES_AT_ONCE = 200
"""Most searches of a text, of up to 64 KiB, for a plain request: about a millisecond."""


class Decision(Struct, frozen=True):
    """A decision about a request: an answer, a fault, or both."""

    rule: RuleState
    answer: ScriptedAnswer | None
    fault: Fault | None


class RuleMatch(Struct, frozen=True):
    """A rule whose conditions hold for a request, with its random source."""

    rule: RuleState
    rng: Random
    groups: Groups


Candidate: TypeAlias = tuple[RuleState, Random]
"""A rule for the scope and model of a request, with its random source."""
Choice: TypeAlias = tuple[RuleMatch, Fault | None]
"""The match that decides about a request, with its fault."""


class ScriptSet:
    """All scripts of a server: those of files, and rules that were set at run time."""

    limit_bytes = MAX_COUNTERS * COUNTER_BYTES

    def __init__(
        self,
        files: Sequence[tuple[str, str]],
        context: RuleContext,
        unix: Callable[[], float],
        earlier_scripts: Mapping[str, Script] | None = None,
    ) -> None:
        """`files` lists model (empty for all) and path, in order. `unix` returns Unix seconds.

        `earlier_scripts` are scripts that the arbiter has read, by their paths.

        Raises:
            ScriptError: A file is invalid, and was not read before.
        """
        self._context = context
        self._unix = unix
        self._counters: Counters = Counters(MAX_COUNTERS)
        self.unanswered = 0
        self._has_warned_of_budget = False
        self.on_change: Callable[[], None] = no_pause
        """Called in a greenlet after rules have changed, and when a client looks at them."""
        self.files = RuleFiles(files, context, earlier_scripts or {}, self._use_reloaded)
        self.added = AddedRules(context, self._note_rules)
        """Rules set at run time, which take precedence over the files' rules."""
        self._note_rules()

    def _use_reloaded(self) -> None:
        self._note_rules()
        self.on_change()

    def _note_rules(self) -> None:
        """Finds out what the rules have in common, so that requests need not."""
        self._counts_all_matches = any(state.counts_all_matches for state in self._states())
        """True if a rule also counts the matching requests that another rule answers."""
        self._common_rules: Sequence[Candidate] | None = None
        """All rules, if each is a candidate for each request, else None."""
        if not self.added.rules and not any(file.model for file in self.files):
            self._common_rules = [(rule, file.rng) for file in self.files for rule in file.rules]

    def _states(self) -> list[RuleState]:
        return [*(rule.state for rule in self.added.rules), *self.files.states()]

    def decide(self, request: MatchedRequest, rng: Random | None = None) -> Decision | None:
        """Returns the decision of the first matching rule, or None. May pause.

        `rng` draws the random values of a request with a seed or greedy decoding.

        Raises:
            RuleFailureError: The rule cannot answer.
        """
        choice: Choice | None
        if self._counts_all_matches:
            choice = self._choose(self._matches(request), request, rng)
        else:
            choice = self._first_choice(request, rng)
        if choice is None:
            self.unanswered += 1
            return None
        match, fault = choice
        rule = match.rule
        answer = rule.action.constant_answer
        if answer is None or rule.may_loop:
            decision = self._decision(match, request, rng or match.rng, fault)
        else:
            decision = Decision(rule, answer, fault)
        rule.counts.answered += 1
        return decision

    def _first_choice(self, request: MatchedRequest, rng: Random | None) -> Choice | None:
        """Returns the first match that decides; for rules without `nth`. May pause."""
        for rule, rule_rng in self._candidates(request):
            groups = self._matching_groups(rule, request)
            if groups is not None:
                choice = self._choice(RuleMatch(rule, rule_rng, groups), request, rng)
                if choice is not None:
                    return choice
            request.pause()
        return None

    def _matches(self, request: MatchedRequest) -> list[RuleMatch]:
        """Returns the rules whose conditions hold, in order, as far as they may decide. May pause.

        After a rule that answers in any case, only rules with `nth` are compared, for their counts.
        """
        matches: list[RuleMatch] = []
        is_decided = False
        for rule, rng in self._candidates(request):
            if is_decided and not rule.counts_all_matches:
                continue
            groups = self._matching_groups(rule, request)
            if groups is not None:
                matches.append(RuleMatch(rule, rng, groups))
                is_decided = is_decided or rule.always_answers
            request.pause()
        return matches

    def _choose(
        self, matches: Sequence[RuleMatch], request: MatchedRequest, rng: Random | None
    ) -> Choice | None:
        """Returns the match that decides, with its fault; None if no rule decides.

        Does not pause: counts of concurrent requests must not mix.
        """
        for match in matches:
            if match.rule.counts_all_matches:
                match.groups.count = match.rule.count_match(request, self._counters)
        for match in matches:
            choice = self._choice(match, request, rng)
            if choice is not None:
                return choice
        return None

    def _choice(
        self, match: RuleMatch, request: MatchedRequest, rng: Random | None
    ) -> Choice | None:
        """Returns the match with its fault, or None if the rule does not decide. Never pauses."""
        rule = match.rule
        if rule.counts_matches and not rule.counts_all_matches:
            match.groups.count = rule.count_match(request, self._counters)
        draws = rng or match.rng
        if not rule.always_answers:
            if not rule.is_due(match.groups.count, request, self._counters):
                return None
            chance = rule.rule.when.chance
            if chance < 1 and draws.random() >= chance:
                return None
        fault: Fault | None = None
        if rule.faults is not None:
            fault = rule.faults.fault_for(request.facts, draws, self._context.now())
        if rule.only_fails and fault is None:
            return None
        if rule.rule.times is not None and not self._take_answer(rule, request):
            return None
        return match, fault

    def _candidates(self, request: MatchedRequest) -> Iterable[Candidate]:
        """Returns the rules for a request's scope and model, in order."""
        if self._common_rules is not None:
            return self._common_rules
        return self._candidates_of_scope(request)

    def _candidates_of_scope(self, request: MatchedRequest) -> Iterator[Candidate]:
        # Not `request.scope`, which costs more than the rest of the decision about a plain chat.
        scope = request.facts.header(SCOPE) if self.added.rules else None
        for added in self.added.rules:
            if added.scope in (None, scope):
                yield added.state, added.rng
        for file in self.files:
            if file.model in ("", request.facts.model):
                for rule in file.rules:
                    yield rule, file.rng

    def _take_answer(self, rule: RuleState, request: MatchedRequest) -> bool:
        """Counts an answer of a rule with `times`, also for the next worker.

        Returns False where another rank has given the last one.
        """
        if not rule.take_answer(request, self._counters):
            return False
        if rule.path == RUN_TIME:
            self.added.keep_answer(rule)
        return True

    def _matching_groups(self, rule: RuleState, request: MatchedRequest) -> Groups | None:
        try:
            return rule.matching_groups(request)
        except SlowRegexError as error:
            rule.counts.too_slow += 1
            self._warn_of_slow_rule(rule, error)
            return None

    def _decision(
        self, match: RuleMatch, request: MatchedRequest, rng: Random, fault: Fault | None
    ) -> Decision:
        rule = match.rule
        if rule.only_fails:
            return Decision(rule, None, fault)
        try:
            if rule.may_loop:
                rule.check_loop(request)
            values: dict[str, object] = {}
            if not rule.action.is_constant:
                values = self._values(request, match.groups, rng)
            answer = rule.action.answer(request, values, self._context.accepts)
        except (RuleFailureError, ScriptError) as error:
            rule.counts.failed += 1
            if rule.counts.failed == 1:
                log.warning("%s: %s", rule.location, error)
            raise RuleFailureError(f"{rule.location}: {error}") from None
        return Decision(rule, answer, fault)

    def _warn_of_slow_rule(self, rule: RuleState, error: SlowRegexError) -> None:
        """Logs a slow regex once per rule, and a spent budget once."""
        if not isinstance(error, BudgetSpentError):
            if rule.counts.too_slow == 1:
                log.warning(
                    "%s: the regex %.60r takes too long; the rule is skipped",
                    rule.location,
                    str(error),
                )
        elif not self._has_warned_of_budget:
            self._has_warned_of_budget = True
            log.warning("%s: %s; rules with text conditions are skipped", rule.location, error)

    def _values(self, request: MatchedRequest, groups: Groups, rng: Random) -> dict[str, object]:
        """Returns what templates can name (docs/scripts.md)."""
        unix_s = self._unix()
        results = request.tool_results
        return {
            "match": groups.texts,
            "message": request.last_text[:MAX_VALUE_CHARACTERS],
            "user": request.user_text[:MAX_VALUE_CHARACTERS],
            "tool_result": results[-1].text[:MAX_VALUE_CHARACTERS] if results else "",
            "model": request.facts.model,
            "api": request.api,
            "turn": request.turn,
            "count": groups.count,
            "now": datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds"),
            "unix": unix_s,
            "header": request.facts.header,
            BUDGET_KEY: Budget(request.pause),
            **RandomFunctions(rng).by_name(),
        }

    def has_replies_for(self, request: MatchedRequest) -> bool:
        """Returns whether a test has set replies of the kind, and in the scope, of a request."""
        return any(
            added.state.action.result_kind == request.result_kind
            for added in self.added.of_scope(request.scope)
        )

    def explain_unmatched(self, request: MatchedRequest) -> str:
        """Returns a sentence with the rule that is nearest to a request without a decision."""
        from app.extensions.scripts.nearest import explain_unmatched  # few requests need it

        rules = (rule for rule, _ in self._candidates(request))
        return explain_unmatched(rules, request, self._counters)

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the counters."""
        return len(self._counters) * COUNTER_BYTES

    @property
    def rules(self) -> int:
        """Number of rules."""
        return len(self._states())

    @property
    def answers_refused(self) -> bool:
        """True if a rule may answer requests that vLLM rejects."""
        return any(state.answers_refused for state in self._states())

    @property
    def decides_at_once(self) -> bool:
        """True if a decision about a plain request never takes long."""
        states = self._states()
        if len(states) > MAX_RULES_AT_ONCE:
            return False
        return sum(state.most_searches for state in states) <= MAX_SEARCHES_AT_ONCE

    def restart(self) -> None:
        """Resets all counters."""
        self._counters.clear()
        if self._context.uses is not None:
            self._context.uses.clear()
        self.unanswered = 0
        self._has_warned_of_budget = False
        self.added.restart()
        self.files.restart()

    def report(self) -> dict[str, object]:
        """Returns the body of GET /admin/script.

        `unanswered` counts prompts that no rule has answered.
        """
        return {"files": self.files.report(), "unanswered": self.unanswered}


def open_scripts(
    settings: ScriptSettings, context: RuleContext, earlier_scripts: Mapping[str, Script]
) -> ScriptSet:
    """Opens the scripts of the settings; the arbiter has read `earlier_scripts`.

    Raises:
        ConfigError: A script is invalid.
    """
    try:
        return ScriptSet(settings.files, context, time.time, earlier_scripts)
    except ScriptError as error:
        raise ConfigError(f"setting script: {error}") from None


def check_scripts(settings: ScriptSettings) -> dict[str, Script]:
    """Returns the scripts by their paths. Only `open_scripts` logs warnings.

    Raises:
        ConfigError: A script is invalid.
    """
    scripts: dict[str, Script] = {}
    context = RuleContext(Random(0), time.monotonic, SchemaCheck(Schemas()))
    for _, path in settings.files:
        file = ScriptFile("", path, Random(0))
        try:
            file.read(context)
        except ScriptError as error:
            raise ConfigError(f"setting script: {error}") from None
        if file.script is not None:
            scripts[path] = file.script
    return scripts


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """Checks values against JSON Schemas."""

    schemas: Constraints | Schemas

    def __call__(self, schema: object, value: object) -> bool:
        """Returns true if the schema accepts the value.

        Raises:
            ScriptError: The schema is invalid.
        """
        try:
            return self.schemas.compile(schema, lenient=True).accepts(cast(JSON, value))
        except SchemaError as error:
            raise ScriptError(f"a tool schema is invalid: {error}") from None
