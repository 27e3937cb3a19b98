"""The state of one rule: decides if the rule answers a request, and counts matches and answers."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from cachetools import LRUCache

from app.serving.faults.fault import Fault
from app.serving.faults.script import FaultScript, RequestFacts
from app.serving.scripts.action import Accepts, Action, Answer
from app.serving.scripts.matching import KNOWN, WORDS, Conditions, Groups, Request, numbers
from app.serving.scripts.reading import place
from app.serving.scripts.rules import Nth, Rule, ScriptError, Then
from app.serving.scripts.templates import RandomFunctions
from config.fault_rules import read_fault_rule

log = logging.getLogger(__name__)
COUNTERS_BYTES = 2 << 20
"""Most memory of the counters per key or conversation, in bytes: about 8,000 counters, the last used."""
COUNTER_BYTES = 256


class Counters:
    """Counts matches of rules per API key or conversation."""

    def __init__(self) -> None:
        self.limit_bytes = COUNTERS_BYTES
        self._met: LRUCache[tuple[int, bytes], int]
        self._met = LRUCache(COUNTERS_BYTES, getsizeof=lambda count: COUNTER_BYTES)

    @property
    def size_bytes(self) -> int:
        return int(self._met.currsize)

    def count(self, rule: int, whose: bytes) -> int:
        count = self._met[rule, whose] = self._met.get((rule, whose), 0) + 1
        return count

    def clear(self) -> None:
        self._met.clear()


class RuleInput(NamedTuple):
    """Time, random source and schema check for one request."""

    rng: Random
    now_s: float
    """Monotonic."""
    unix_s: float
    accepts: Accepts


class RuleState:
    """A compiled rule of a file, with its counters. ScriptError for an invalid rule."""

    def __init__(self, path: str, number: int, rule: Rule, uid: int, now_s: float) -> None:
        """`uid` is unique among the rules of all files."""
        self.rule = rule
        self.uid = uid
        self.move(path, number)
        then = rule.then if isinstance(rule.then, Then) else Then(passes=True)
        try:
            self.conditions = Conditions(rule.when)
            self.action = Action(then, self.conditions.groups)
            self._fault_rule = None if then.fault is None else read_fault_rule(then.fault)
        except ScriptError as error:
            raise ScriptError(f"{self.place}: {error}") from None
        except ValueError as error:
            raise ScriptError(f"{self.place}: then.fault: {error}") from None
        self._then = then
        self.needed_tools = self.action.needed_tools()
        nth = rule.when.nth
        self._nth = nth if nth is None or isinstance(nth, Nth) else Nth(count=nth)
        self._is_turn = None if self._nth is None else numbers(self._nth.count)
        self.restart(now_s)

    def move(self, path: str, number: int) -> None:
        """Updates the rule's file and number, for logs and reports."""
        self.place = place(path, number, self.rule.name)
        self.number = number

    def restart(self, now_s: float) -> None:
        self.answered = self.failed = self.slow = self.unoffered = self._met = 0
        self._fault = None if self._fault_rule is None else FaultScript([self._fault_rule], now_s)

    def concerns(self, request: Request) -> bool:
        """True if the rule has the result that the request wants. A rule without a result concerns all
        requests.
        """
        if self.action.numbers or self.action.speaks:
            return request.wants == (self.action.numbers or WORDS)
        return True

    def missing_tool(self, request: Request) -> str:
        """Returns an error that names a tool that the request does not offer; empty when none is missing."""
        name = next((name for name in self.needed_tools if name not in request.tools), None)
        if name is None:
            return ""
        there = ", ".join(list(request.tools)[:8]) or "none"
        return f"it calls the tool {name!r}, which is none of those that the request offers: {there}"

    def groups_of(self, request: Request, rng: Random, counters: Counters) -> Groups | None:
        """Returns the texts captured by the rule's regexes; None when the rule does not answer. May raise
        TooSlow.
        """
        groups = Groups()
        if not self.concerns(request) or not self.conditions.fits(request, groups):
            return None
        if missing := self.missing_tool(request):
            if not self.unoffered:
                log.warning("%s: passed over: %s", self.place, missing)
            self.unoffered += 1
            return None
        self._met += 1
        groups.count = self._met
        if self._nth is not None and self._is_turn is not None:
            groups.count = self._counted(self._nth, request, counters)
            if not self._is_turn(groups.count):
                return None
        chance = self.rule.when.chance
        return groups if chance >= 1 or rng.random() < chance else None

    def fault(self, request: Request, given: RuleInput) -> Fault | None:
        """Returns the fault for this request; None without a fault or when its turn has not come."""
        if self._fault is None:
            return None
        facts = RequestFacts(request.path, request.model, request.header, request.key, request.tokens)
        return self._fault.fault_for(facts, given.rng, given.now_s)

    @property
    def only_fails(self) -> bool:
        """True if the rule has a fault and no answer."""
        return not (self.action.speaks or self.action.numbers or self._then.passes)

    def answer(self, request: Request, groups: Groups, given: RuleInput) -> Answer:
        """Builds the answer. ScriptFailure: the rule matches but cannot answer."""
        return self.action.answer(request, _values(request, groups, given), given.accepts)

    def _counted(self, nth: Nth, request: Request, counters: Counters) -> int:
        if nth.per == "server":
            return self._met
        whose = request.conversation
        if nth.per == "key":
            whose = blake2b(request.key().encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return counters.count(self.uid, whose)


def _values(request: Request, groups: Groups, given: RuleInput) -> dict[str, object]:
    results = request.tool_results
    return {
        "match": groups.values(),
        "message": request.last[:KNOWN],
        "user": request.user[:KNOWN],
        "tool_result": results[-1].text[:KNOWN] if results else "",
        "model": request.model,
        "api": request.api,
        "turn": request.turn,
        "count": groups.count,
        "now": datetime.fromtimestamp(given.unix_s, UTC).isoformat(timespec="seconds"),
        "unix": given.unix_s,
        "header": request.header,
        **RandomFunctions(given.rng).values(),
    }
