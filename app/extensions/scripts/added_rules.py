"""Rules of a server that were set at run time, and are kept for the next worker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import msgspec
from gevent.lock import BoundedSemaphore
from msgspec import Struct, to_builtins

from app.core.base.clock.pause import call_off_hub
from app.extensions.scripts.reachability import unreachable
from app.extensions.scripts.reader import convert_script
from app.extensions.scripts.regexes import MAX_SCRIPT_REGEX_NODES
from app.extensions.scripts.rules import ScriptError
from app.extensions.scripts.script_file import (
    RuleContext,
    RuleState,
    ScriptCompiler,
    random_source,
)
from app.extensions.scripts.template_limits import MAX_SCRIPT_NODES

if TYPE_CHECKING:
    from app.extensions.scripts.kept import KeptChanges

log = logging.getLogger(__name__)
RUN_TIME = "at run time"
"""Stands for the path of a file in messages about rules that were set at run time."""
MAX_ADDED_BYTES = 2 << 20
"""Most JSON of all rules set at run time."""
RULE_BYTES = 200
"""Estimated memory of a rule, in addition to its JSON."""


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


class AddedRules:
    """Compiles rules for run time, and has those in use."""

    def __init__(self, context: RuleContext, on_change: Callable[[], None]) -> None:
        """`on_change` is called after the rules in use have changed."""
        self._context = context
        self._on_change = on_change
        self._ids = count(1)
        self._compiling = BoundedSemaphore()
        """Held while rules compile, so that one native thread competes with the event loop."""
        self._store: KeptChanges | None = None
        """Keeps the rules for the next worker."""
        self.rules: tuple[AddedRule, ...] = ()
        """The rules in use; rules with a scope precede rules without one."""

    def of_scope(self, scope: str | None) -> list[AddedRule]:
        """Returns the rules that apply to the requests of a scope."""
        return [rule for rule in self.rules if rule.scope in (None, scope)]

    def next_number(self, scope: str | None) -> int:
        """Returns the number of the next rule of a scope: rules of other tests do not count."""
        numbers = (rule.state.number for rule in self.rules if rule.scope == scope)
        return 1 + max(numbers, default=0)

    def read(
        self,
        document: Mapping[str, object],
        scope: str | None,
        owner: str | None = None,
        *,
        first: int = 1,
    ) -> list[AddedRule]:
        """Compiles rules in a native thread, but does not use them yet.

        The rules have numbers from `first`.

        Raises:
            ScriptError: A rule is invalid.
        """
        with self._compiling:
            return call_off_hub(self._read, document, scope, owner, first)

    def _read(
        self,
        document: Mapping[str, object],
        scope: str | None,
        owner: str | None,
        first: int = 1,
    ) -> list[AddedRule]:
        rows = document.get("rules")
        context = self._context
        added: list[AddedRule] = []
        try:
            script = convert_script(document, RUN_TIME, first)
            rng = random_source(script, context.rng)
            compiler = ScriptCompiler()
            pairs = zip(script.rules, rows if isinstance(rows, list) else (), strict=True)
            for number, (rule, row) in enumerate(pairs, first):
                state = context.new_state(RUN_TIME, number, rule, compiler)
                state.action.check_calls(script.tools, context.accepts, state.location)
                state.scope = scope
                new_rule = AddedRule(
                    id=0,
                    scope=scope,
                    owner=owner,
                    seed=script.seed,
                    document=row,
                    size_bytes=RULE_BYTES + len(msgspec.json.encode(row)),
                    rng=rng,
                    state=state,
                )
                new_rule.use_id(next(self._ids))
                added.append(new_rule)
        except RecursionError:
            raise ScriptError(f"the rules added {RUN_TIME} are nested too deeply") from None
        return added

    def use(self, rules: Sequence[AddedRule], new: Sequence[AddedRule] = ()) -> None:
        """Replaces all rules. Rules with a scope precede rules without one.

        Raises:
            ScriptError: They are too large together, or one of the `new` rules can never answer;
                the old rules stay in use.
        """
        _check_limits(rules)
        ordered = [rule for rule in rules if rule.scope is not None]
        ordered += [rule for rule in rules if rule.scope is None]
        flaw = unreachable([rule.state for rule in ordered], [rule.state for rule in new])
        if flaw:
            raise ScriptError(flaw)
        previous = self.rules
        self.rules = tuple(ordered)
        remaining_ids = {rule.id for rule in ordered}
        for rule in previous:
            if rule.id not in remaining_ids and rule.state.rule.times is not None:
                rule.state.forget_answers()
        self._on_change()
        if self._store is not None:
            self._store.keep_rules({rule.id for rule in previous}, self._records())

    def restore(self, store: KeptChanges) -> None:
        """Uses the rules in `store`, which an earlier worker has left, and keeps changes there."""
        rules: list[AddedRule] = []
        for record in store.earlier.rules.values():
            rules += self._restored(record)
        numbers: Counter[str | None] = Counter()
        for rule in rules:
            numbers[rule.scope] += 1
            rule.state.set_number(numbers[rule.scope])
        self.use(rules)
        self._ids = count(store.earlier.last_id + 1)
        self._store = store
        if rules:
            log.info("restored %d rules that were added at run time", len(rules))

    def keep_answer(self, state: RuleState) -> None:
        """Keeps how often a rule with `times` has answered, unless its file is for all ranks."""
        if self._store is None or state.shared_uses is not None:
            return
        for rule in self.rules:
            if rule.state is state:
                self._store.append({"used": [rule.id, state.use_count]})

    def restart(self) -> None:
        """Resets the counters of all rules."""
        for rule in self.rules:
            rule.state.restart(self._context.now())
        if self._store is not None:
            self._store.rewrite(self._records())

    def _records(self) -> list[dict[str, object]]:
        return [rule.record() for rule in self.rules]

    def _restored(self, record: Mapping[str, object]) -> list[AddedRule]:
        """Returns the rule of a record; none, which is logged, if it cannot be read."""
        document = {"rules": [record.get("document")], "seed": record.get("seed")}
        fields = msgspec.convert(record, KeptRule)
        try:
            [rule] = self._read(document, fields.scope, fields.owner)
        except ScriptError as error:
            log.error("a rule was lost: %s", error)
            return []
        rule.use_id(fields.id)
        rule.state.use_count = fields.uses
        return [rule]


def _check_limits(rules: Iterable[AddedRule]) -> None:
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
