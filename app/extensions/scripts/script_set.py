"""The scripts of a server: picks the rule for a request and counts each rule's answers.

Files are read at start, and again when they change. Start reading at `ScriptSet.decide`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import TYPE_CHECKING, TypeAlias, cast

import gevent
import msgspec
from gevent.lock import BoundedSemaphore
from msgspec import Struct, to_builtins

from app.core.api.reply_rules import ScriptedAnswer
from app.core.base.clock.pause import call_off_hub
from app.core.engine.constraints import Constraints, SchemaError
from app.core.server.http.context import SCOPE
from app.core.server.http.fault import Fault
from app.extensions.forms.schema import Schemas
from app.extensions.forms.schema.keywords import JSON
from app.extensions.scripts.action import Accepts
from app.extensions.scripts.matched_request import (
    MAX_VALUE_CHARACTERS,
    BudgetSpentError,
    MatchedRequest,
    SlowRegexError,
    no_pause,
)
from app.extensions.scripts.matching import Groups
from app.extensions.scripts.reachability import unreachable
from app.extensions.scripts.reader import convert_script
from app.extensions.scripts.regexes import MAX_SCRIPT_REGEX_NODES
from app.extensions.scripts.rules import RuleFailureError, Script, ScriptError
from app.extensions.scripts.script_file import (
    Counters,
    FileRules,
    RuleState,
    ScriptCompiler,
    ScriptFile,
    random_source,
    stamp_of,
)
from app.extensions.scripts.settings import ScriptSettings
from app.extensions.scripts.shared_uses import SharedUses
from app.extensions.scripts.template_environment import RandomFunctions
from app.extensions.scripts.template_limits import BUDGET_KEY, MAX_SCRIPT_NODES, Budget
from config.declaration import ConfigError

if TYPE_CHECKING:
    from app.extensions.scripts.kept import KeptChanges

log = logging.getLogger(__name__)
CHECK_INTERVAL_S = 1.0
"""Seconds between checks of the files for changes."""
RUN_TIME = "at run time"
"""Stands for the path of a file in messages about rules that were set at run time."""
MAX_ADDED_BYTES = 2 << 20
"""Most JSON of all rules set at run time."""
RULE_BYTES = 200
"""Estimated memory of a rule, in addition to its JSON."""
MAX_COUNTERS = 8192
"""Most counters per key or conversation, by last use."""
COUNTER_BYTES = 256
"""Estimated memory of one counter."""
MAX_RULES_AT_ONCE = 200
"""Most rules that are compared with a plain request without a pause, in about a millisecond."""
MAX_SEARCHES_AT_ONCE = 200
"""Most searches of a text, of up to 64 KiB, for a plain request: about a millisecond."""
MAX_LISTED_RULES = 20
"""Most rules that a message lists."""


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


class AddedRule(Struct, eq=False):
    """A rule that was set at run time; its `document` is in a file's form."""

    id: int
    scope: str | None
    """Header X-Understudy-Scope of its requests; None for all requests."""
    owner: str | None
    """The test that has set the rule, where it names itself."""
    seed: int | None
    """Seed of the random draws of its script."""
    document: Mapping[str, object]
    size_bytes: int
    rng: Random
    state: RuleState

    def use_id(self, rule_id: int) -> None:
        """Sets the id, which also identifies the rule when it counts its answers on all ranks."""
        self.id = rule_id
        self.state.identity = f"{RUN_TIME} {rule_id} {self.scope} {self.state.rule!r}"

    def record(self) -> dict[str, object]:
        """Returns the rule as it is kept for the next worker."""
        return {
            "id": self.id,
            "scope": self.scope,
            "owner": self.owner,
            "seed": self.seed,
            "document": self.document,
            "uses": self.state.use_count,
        }

    def row(self) -> dict[str, object]:
        """Returns the rule in a list of rules, with its counters."""
        return {
            "id": self.id,
            "scope": self.scope,
            "owner": self.owner,
            "number": self.state.number,
            **self.document,
            **to_builtins(self.state.counts),
        }


class KeptRule(Struct):
    """A record of a rule that an earlier worker has left, without the rule itself."""

    id: int
    scope: str | None = None
    owner: str | None = None
    uses: int = 0


class Inherited(Struct, frozen=True):
    """Things that a worker gets from its arbiter."""

    scripts: Mapping[str, Script] = {}
    """The scripts that the arbiter has read, by their paths."""
    uses: SharedUses | None = None
    """Answers of rules with `times` on all ranks; None on a server of one rank."""


class ScriptSet:
    """All scripts of a server. `now` returns monotonic seconds, `unix` Unix seconds."""

    limit_bytes = MAX_COUNTERS * COUNTER_BYTES

    def __init__(
        self,
        files: Sequence[tuple[str, str]],
        rng: Random,
        now: Callable[[], float],
        unix: Callable[[], float],
        accepts: Accepts,
        inherited: Inherited | None = None,
    ) -> None:
        """`files` lists model (empty for all) and path, in order.

        Raises:
            ScriptError: A file is invalid, and was not read before.
        """
        self._inherited = inherited or Inherited()
        self._now = now
        self._unix = unix
        self._rng = rng
        self._accepts = accepts
        self._uids = count()
        self._numbers = count(1)
        self._counters: Counters = Counters(MAX_COUNTERS)
        self.unanswered = 0
        self._has_warned_of_budget = False
        self._watch: gevent.Greenlet | None = None
        self._compiling = BoundedSemaphore()
        """Held while rules of run time compile, so that one thread competes with the event loop."""
        self.on_change: Callable[[], None] = no_pause
        """Called in a greenlet after rules have changed, and when a client looks at them."""
        self.added: tuple[AddedRule, ...] = ()
        """Rules set at run time, which take precedence over the files' rules."""
        self.files = [ScriptFile(model, path, rng) for model, path in files]
        self._store: KeptChanges | None = None
        """Keeps the rules of run time for the next worker."""
        self._counts_all_matches = False
        """True if a rule also counts the matching requests that another rule answers."""
        self._common_rules: Sequence[Candidate] | None = None
        """All rules, if each is a candidate for each request, else None."""
        for file in self.files:
            self._read_first(file)
        self._note_rules()

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
            fault = rule.faults.fault_for(request.facts, draws, self._now())
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
        scope = request.facts.header(SCOPE) if self.added else None
        for added in self.added:
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
        if self._store is not None and rule.path == RUN_TIME and rule.shared_uses is None:
            self._store.append({"used": [rule.number, rule.use_count]})
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
            answer = rule.action.answer(request, values, self._accepts)
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
            for added in self.added_for(request.scope)
        )

    def added_for(self, scope: str | None) -> list[AddedRule]:
        """Returns the rules of run time that apply to the requests of a scope."""
        return [added for added in self.added if added.scope in (None, scope)]

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
        return len(self.added) + sum(len(file.rules) for file in self.files)

    @property
    def answers_refused(self) -> bool:
        """True if a rule may answer requests that vLLM rejects."""
        if any(added.state.answers_refused for added in self.added):
            return True
        return any(rule.answers_refused for file in self.files for rule in file.rules)

    @property
    def decides_at_once(self) -> bool:
        """True if a decision about a plain request never takes long."""
        if self.rules > MAX_RULES_AT_ONCE:
            return False
        searches = sum(added.state.most_searches for added in self.added)
        searches += sum(rule.most_searches for file in self.files for rule in file.rules)
        return searches <= MAX_SEARCHES_AT_ONCE

    def next_number(self, scope: str | None) -> int:
        """Returns the number of the next rule of a scope: rules of other tests do not count."""
        numbers = (added.state.number for added in self.added if added.scope == scope)
        return 1 + max(numbers, default=0)

    def read_rules(
        self,
        document: Mapping[str, object],
        scope: str | None,
        owner: str | None = None,
        *,
        first: int = 1,
    ) -> list[AddedRule]:
        """Compiles rules for run time in a native thread, but does not use them yet.

        The rules have numbers from `first`.

        Raises:
            ScriptError: A rule is invalid.
        """
        with self._compiling:
            return call_off_hub(self._read_rules, document, scope, owner, first)

    def _read_rules(
        self,
        document: Mapping[str, object],
        scope: str | None,
        owner: str | None,
        first: int = 1,
    ) -> list[AddedRule]:
        rows = document.get("rules")
        added: list[AddedRule] = []
        try:
            script = convert_script(document, RUN_TIME, first)
            rng = random_source(script, self._rng)
            compiler = ScriptCompiler()
            pairs = zip(script.rules, rows if isinstance(rows, list) else (), strict=True)
            for number, (rule, row) in enumerate(pairs, first):
                state = RuleState(
                    RUN_TIME,
                    number,
                    rule,
                    uid=next(self._uids),
                    now_s=self._now(),
                    compiler=compiler,
                )
                state.action.check_calls(script.tools, self._accepts, state.location)
                size_bytes = RULE_BYTES + len(msgspec.json.encode(row))
                state.scope = scope
                new_rule = AddedRule(
                    id=0,
                    scope=scope,
                    owner=owner,
                    seed=script.seed,
                    document=row,
                    size_bytes=size_bytes,
                    rng=rng,
                    state=state,
                )
                state.shared_uses = self._inherited.uses
                new_rule.use_id(next(self._numbers))
                added.append(new_rule)
        except RecursionError:
            raise ScriptError(f"the rules added {RUN_TIME} are nested too deeply") from None
        return added

    def use_rules(self, rules: Sequence[AddedRule], new: Sequence[AddedRule] = ()) -> None:
        """Replaces all rules of run time. Rules with a scope precede rules without one.

        Raises:
            ScriptError: They are too large together, or one of the `new` rules can never answer;
                the old rules stay in use.
        """
        self._check_limits(rules)
        ordered = [rule for rule in rules if rule.scope is not None]
        ordered += [rule for rule in rules if rule.scope is None]
        flaw = unreachable([rule.state for rule in ordered], [rule.state for rule in new])
        if flaw:
            raise ScriptError(flaw)
        previous = self.added
        self.added = tuple(ordered)
        remaining_ids = {rule.id for rule in ordered}
        for rule in previous:
            if rule.id not in remaining_ids and rule.state.rule.times is not None:
                rule.state.forget_answers()
        self._note_rules()
        if self._store is not None:
            self._store.keep_rules({rule.id for rule in previous}, self._records())

    def _records(self) -> list[dict[str, object]]:
        return [rule.record() for rule in self.added]

    def restore(self, store: KeptChanges) -> None:
        """Sets the rules in `store`, which an earlier worker has left, and keeps changes there."""
        rules: list[AddedRule] = []
        for record in store.earlier.rules.values():
            rules += self._restored(record)
        numbers: Counter[str | None] = Counter()
        for rule in rules:
            numbers[rule.scope] += 1
            rule.state.set_number(numbers[rule.scope])
        self.use_rules(rules)
        self._numbers = count(store.earlier.last_id + 1)
        self._store = store
        if rules:
            log.info("restored %d rules that were added at run time", len(rules))

    def _restored(self, record: Mapping[str, object]) -> list[AddedRule]:
        """Returns the rule of a record; none, which is logged, if it cannot be read."""
        document = {"rules": [record.get("document")], "seed": record.get("seed")}
        fields = msgspec.convert(record, KeptRule)
        try:
            [rule] = self._read_rules(document, fields.scope, fields.owner)
        except ScriptError as error:
            log.error("a rule was lost: %s", error)
            return []
        rule.use_id(fields.id)
        rule.state.use_count = fields.uses
        return [rule]

    def _check_limits(self, rules: Sequence[AddedRule]) -> None:
        """Raises `ScriptError` if the rules are too large together."""
        if sum(rule.size_bytes for rule in rules) > MAX_ADDED_BYTES:
            raise ScriptError(
                f"script {RUN_TIME}: the rules together exceed {MAX_ADDED_BYTES >> 20} MiB"
            )
        if sum(rule.state.template_nodes for rule in rules) > MAX_SCRIPT_NODES:
            raise ScriptError(
                f"script {RUN_TIME}: the templates have more than {MAX_SCRIPT_NODES} nodes in total"
            )
        if sum(rule.state.regex_nodes for rule in rules) > MAX_SCRIPT_REGEX_NODES:
            raise ScriptError(
                f"script {RUN_TIME}: the regexes have more than {MAX_SCRIPT_REGEX_NODES} elements "
                "in total"
            )

    def _note_rules(self) -> None:
        states = [added.state for added in self.added]
        states += [state for file in self.files for state in file.rules]
        self._counts_all_matches = any(state.counts_all_matches for state in states)
        self._common_rules = None
        if not self.added and not any(file.model for file in self.files):
            self._common_rules = [(rule, file.rng) for file in self.files for rule in file.rules]

    def _read_first(self, file: ScriptFile) -> None:
        """Uses the rules of a file.

        A worker that replaces a crashed one must start, even if the file has become invalid: it
        uses the rules that the arbiter has read.

        Raises:
            ScriptError: The file is invalid, and the arbiter has not read it.
        """
        try:
            file.use(self._read(file))
        except ScriptError as error:
            script = self._inherited.scripts.get(file.path)
            if script is None:
                raise
            log.error("%s; using the rules from server startup", error)
            file.use(
                file.compile(
                    script, self._uids, now_s=self._now(), rng=self._rng, accepts=self._accepts
                )
            )
            self._share_uses(file.rules)
            file.error = str(error)

    def _share_uses(self, rules: Sequence[RuleState]) -> None:
        for rule in rules:
            rule.shared_uses = self._inherited.uses

    def _read(self, file: ScriptFile) -> FileRules:
        file_rules = file.read(self._uids, self._now(), self._rng, self._accepts)
        self._share_uses(file_rules.rules)
        if file_rules.unchecked:
            log.warning(
                "script %s: the tool calls of %s are checked only when requests offer the tools; "
                "add their schemas under `tools` to check them now",
                file.path,
                _list_rules(file_rules.unchecked),
            )
        flaw = unreachable(file_rules.rules, file_rules.rules)
        if flaw:
            log.warning("%s", flaw)
        return file_rules

    def refresh(self) -> None:
        """Reloads changed files, and calls `on_change` before any request sees their rules.

        Compiles in a native thread. Logs errors, and keeps the old rules of an invalid file.
        """
        changes = call_off_hub(self._read_changes)
        if changes:
            for file, file_rules in changes:
                file.use(file_rules)
                log.info("script %s: reloaded %d rules", file.path, len(file.rules))
            self._note_rules()
            self.on_change()

    def _read_changes(self) -> list[tuple[ScriptFile, FileRules]]:
        changes = []
        for file in self.files:
            if file.stamp == stamp_of(file.path):
                continue
            try:
                changes.append((file, self._read(file)))
            except ScriptError as error:
                log.error("%s; keeping the old rules", error)
        return changes

    def start(self) -> None:
        """Starts to reload changed files, until `close`."""
        self._watch = gevent.spawn(self._watch_files)

    def _watch_files(self) -> None:
        while True:
            gevent.sleep(CHECK_INTERVAL_S)
            try:
                self.refresh()
            except Exception:  # an invalid file must not stop the watch
                log.exception("cannot reload scripts")

    def close(self) -> None:
        """Stops watching, and logs the rules that never answered."""
        if self._watch is not None:
            self._watch.kill(block=False)
        for line in self.unused():
            log.warning("%s", line)

    def restart(self) -> None:
        """Resets all counters."""
        self._counters.clear()
        if self._inherited.uses is not None:
            self._inherited.uses.clear()
        self.unanswered = 0
        self._has_warned_of_budget = False
        for added in self.added:
            added.state.restart(self._now())
        if self._store is not None:
            self._store.rewrite(self._records())
        for file in self.files:
            for rule in file.rules:
                rule.restart(self._now())

    def report(self) -> dict[str, object]:
        """Returns the body of GET /admin/script.

        `unanswered` counts prompts that no rule has answered.
        """
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
            unused_rules = [rule for rule in file.rules if not rule.counts.answered]
            if unused_rules:
                share = f"{len(unused_rules)} of {len(file.rules)} rules never answered"
                yield f"script {file.path}: {share}: {_list_rules(unused_rules)}"


def open_scripts(
    settings: ScriptSettings,
    schemas: Constraints,
    rng: Random,
    now: Callable[[], float],
    inherited: Inherited | None,
) -> ScriptSet:
    """Opens the scripts of the settings.

    Raises:
        ConfigError: A script is invalid.
    """
    accepts = SchemaCheck(schemas)
    try:
        return ScriptSet(
            settings.files,
            rng,
            now=now,
            unix=time.time,
            accepts=accepts,
            inherited=inherited,
        )
    except ScriptError as error:
        raise ConfigError(f"setting script: {error}") from None


def check_scripts(settings: ScriptSettings) -> dict[str, Script]:
    """Returns the scripts by their paths. Only `open_scripts` logs warnings.

    Raises:
        ConfigError: A script is invalid.
    """
    scripts: dict[str, Script] = {}
    for _, path in settings.files:
        file = ScriptFile("", path, Random(0))
        try:
            file.read(count(), 0.0, Random(0), SchemaCheck(Schemas()))
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


def _list_rules(rules: Sequence[RuleState]) -> str:
    labels: list[str] = []
    for state in rules[:MAX_LISTED_RULES]:
        label = f"rule {state.number}"
        if state.rule.name:
            label += f" ({state.rule.name})"
        labels.append(label)
    listed = ", ".join(labels)
    if len(rules) > MAX_LISTED_RULES:
        listed += " and others"
    return listed
