"""Explains why no rule answers a request, and names the nearest rule.

Start reading at `explain_unmatched`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from app.extensions.scripts.matched_request import MatchedRequest, SlowRegexError
from app.extensions.scripts.matching import Groups, as_tuple
from app.extensions.scripts.rules import MessageIs, TextIs, Texts, ToolResultIs, When
from app.extensions.scripts.script_file import Counters, RuleState

MAX_COMPARED_RULES = 200
"""Most rules that are compared to find the nearest one."""
COMPARISON_SECONDS = 0.05
"""Processor time of these comparisons, in addition to the rest of the request's."""
MAX_SHOWN_CHARACTERS = 80
"""Most characters of a text that a reason quotes."""
MAX_LISTED_TEXTS = 4
"""Most alternatives of a condition that a reason lists."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule that did not answer."""

    rule: RuleState
    reason: str
    failed: int
    """Number of its conditions that do not hold."""
    held: int
    """Number of its conditions that hold."""
    is_used_up: bool = False
    """True if the rule would answer, had its `times` allowed one more answer."""


def explain_unmatched(
    rules: Iterable[RuleState], request: MatchedRequest, counters: Counters
) -> str:
    """Returns one sentence with the nearest rule and why it did not answer.

    The nearest rule has the fewest conditions that do not hold. Of several, a rule whose conditions
    do not hold is nearer than a used-up rule: the usual cause is a text that differs. Then the rule
    with the most conditions that hold is nearer, and then the last one, which in a used-up sequence
    is the last reply.
    """
    request.budget.extend(COMPARISON_SECONDS)
    nearest: Candidate | None = None
    count = 0
    for rule in rules:
        count += 1
        if count > MAX_COMPARED_RULES:
            continue
        candidate = _compare(rule, request, counters)
        if nearest is None or _distance(candidate) <= _distance(nearest):
            nearest = candidate
    if nearest is None:
        return "No rule answers this request: no rules are set for it."
    head = "No rule answers this request."
    if count == 1:
        return f"{head} The only rule is {nearest.rule.location}: {nearest.reason}."
    rules_text = f"{count} rules"
    if count > MAX_COMPARED_RULES:
        rules_text = f"the first {MAX_COMPARED_RULES} of {count} rules"
    return f"{head} The nearest of {rules_text} is {nearest.rule.location}: {nearest.reason}."


def _distance(candidate: Candidate) -> tuple[int, bool, int]:
    return candidate.failed, candidate.is_used_up, -candidate.held


def _compare(rule: RuleState, request: MatchedRequest, counters: Counters) -> Candidate:
    """Compares all conditions of a rule."""
    when = rule.rule.when
    specified = count_conditions(when)
    if not rule.has_result_for(request):
        reason = f"it has no result for a request of api {request.api!r}"
        return Candidate(rule, reason, failed=specified + 1, held=0)
    keys: list[str] = []
    try:
        keys = rule.conditions.mismatches(request, Groups())
    except SlowRegexError:
        reason = "its conditions on texts take too long to compare"
        return Candidate(rule, reason, failed=specified + 1, held=0)
    if keys:
        reasons = [_reason(key, when, request) for key in keys]
        return Candidate(
            rule, "; ".join(reasons), failed=len(keys), held=max(0, specified - len(keys))
        )
    reason = rule.missing_tool_error(request) or _rest_reason(rule, request, counters)
    is_used_up = not rule.has_answers_left(request, counters)
    return Candidate(rule, reason, failed=1, held=specified, is_used_up=is_used_up)


def _rest_reason(rule: RuleState, request: MatchedRequest, counters: Counters) -> str:
    """Returns why a rule whose conditions hold did not answer."""
    number = rule.match_count(request, counters)
    if not rule.is_nth(number):
        return f"when.nth does not hold: this is match {number}"
    if not rule.has_answers_left(request, counters):
        return f"it has answered {rule.rule.times} time(s), as many as its `times` allows"
    if rule.only_fails:
        return "its fault does not occur for this request"
    return "when.chance has excluded this request"


def count_conditions(when: When) -> int:
    """Returns the number of conditions of a `when`."""
    count = sum(
        value is not None
        for value in (when.model, when.api, when.turn, when.tools, when.tool_result, when.nth)
    )
    if when.message is not None:
        count += len(when.message) if isinstance(when.message, tuple) else 1
    return count + len(when.headers) + (when.chance < 1)


def _reason(key: str, when: When, request: MatchedRequest) -> str:
    """Returns the expectation of a condition, and the value of the request."""
    name, _, part = key.partition(".")
    if name == "message":
        return f"when.{key}: {_message_reason(when, int(part or 0), request)}"
    if name == "headers":
        # Values of headers are not quoted: they may be secrets.
        has_header = request.facts.header(part) is not None
        return f"when.{key}: the header {'does not match' if has_header else 'is missing'}"
    if name == "tool_result":
        return f"when.{key}: {_tool_result_reason(when, request)}"
    if name == "tools":
        return f"when.{key}: the request offers {_listed(list(request.tools)) or 'no tools'}"
    actual: Mapping[str, object] = {
        "model": request.facts.model,
        "api": request.api,
        "turn": request.turn,
    }
    return f"when.{key}: the request has {_quoted(actual[name])}"


def _message_reason(when: When, number: int, request: MatchedRequest) -> str:
    conditions = when.message if isinstance(when.message, tuple) else (when.message,)
    condition = conditions[number]
    if isinstance(condition, str):
        condition = MessageIs(exact=condition)
    assert condition is not None
    owner = f" of role {condition.role!r}" if condition.role else ""
    messages = request.messages
    if condition.role is not None:
        messages = request.by_role.get(condition.role, ())
    if not messages:
        return f"there is no message{owner}"
    if condition.which == "any":
        return f"no message{owner} {_expectation(condition)}"
    message = messages[0 if condition.which == "first" else -1]
    place = condition.which
    return f"the {place} message{owner} is {_quoted(message.text)}, not one that " + _expectation(
        condition
    )


def _tool_result_reason(when: When, request: MatchedRequest) -> str:
    condition = when.tool_result
    results = request.tool_results
    if not results:
        return "the conversation does not end with the result of a tool"
    names = _listed([result.tool for result in results])
    if condition is False:
        return f"the conversation ends with the result of {names}"
    if isinstance(condition, str):
        return f"the conversation ends with the result of {names}, not of {_quoted(condition)}"
    assert isinstance(condition, ToolResultIs)
    if condition.tool not in (None, *(result.tool for result in results)):
        return f"the conversation ends with the result of {names}, not of {_quoted(condition.tool)}"
    return f"the result is {_quoted(results[-1].text)}, not one that {_expectation(condition)}"


def _expectation(condition: TextIs) -> str:
    """Returns what a condition expects of a text."""
    parts: list[str] = []
    if condition.exact is not None:
        parts.append(f"is {_listed(as_tuple(condition.exact), 'or')}")
    if condition.contains is not None:
        parts.append(f"contains {_listed(as_tuple(condition.contains), 'or')}")
    if condition.regex is not None:
        parts.append(f"matches the regex {_quoted(condition.regex)}")
    return " and ".join(parts)


def _listed(texts: Texts | list[str], word: str = "and") -> str:
    shown = [_quoted(text) for text in islice(texts, MAX_LISTED_TEXTS)]
    omitted = len(texts) - len(shown)
    if omitted:
        shown.append(f"{omitted} more")
    return f" {word} ".join(shown)


def _quoted(value: object) -> str:
    if not isinstance(value, str):
        return str(value)
    if len(value) > MAX_SHOWN_CHARACTERS:
        return repr(f"{value[:MAX_SHOWN_CHARACTERS]}...")
    return repr(value)
