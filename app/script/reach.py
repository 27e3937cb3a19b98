"""Rules that can never be reached: an earlier rule of their file answers all that they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.script.at_work import RuleAtWork
from app.script.matching import WORDS, folded_text, listed, numbers
from app.script.rules import MessageIs, Nth, Numbers, Range, TextIs, ToolResultIs, When


def unreachable(rules: Sequence[RuleAtWork]) -> Iterator[tuple[RuleAtWork, RuleAtWork]]:
    """Pairs of a rule and a later one that fits nothing else.

    Only what can be told for sure: two regexes are compared as texts, and quotas of faults are not.
    """
    by_text: dict[str, list[RuleAtWork]] = {}
    """Rules about one exact message, of which a recording may have made thousands."""
    others: list[RuleAtWork] = []
    for rule in rules:
        text = _only_text(rule.rule.when)
        candidates = [*others, *(by_text.get(text, ()) if text is not None else ())]
        earlier = next((each for each in candidates if _hides(each, rule)), None)
        if earlier is not None:
            yield earlier, rule
        elif _always_answers(rule):
            (others if text is None else by_text.setdefault(text, [])).append(rule)


def _only_text(when: When) -> str | None:
    message = when.message
    if isinstance(message, MessageIs) and not message.ignore_case:
        message = message.exact
    return message if isinstance(message, str) else None


def _always_answers(rule: RuleAtWork) -> bool:
    """Whether the rule answers every request that fits its conditions."""
    nth = rule.rule.when.nth
    every = nth is None or isinstance(nth, Nth) and nth.count == Range()
    return every and rule.rule.when.chance >= 1 and not rule.only_fails


def _hides(earlier: RuleAtWork, later: RuleAtWork) -> bool:
    first, second = earlier.rule.when, later.rule.when
    kinds = [each.action.numbers or (WORDS if each.action.speaks else "") for each in (earlier, later)]
    names = [{*each.needed_tools, *_names(each.rule.when)} for each in (earlier, later)]
    return (
        kinds[0] in ("", kinds[1])
        and names[0] <= names[1]
        and _tools_follow(first.tools, second.tools, bool(names[1]))
        and _among(first.model, second.model)
        and _among(first.api, second.api)
        and _numbers_follow(first.turn, second.turn)
        and _headers_follow(first, second)
        and _result_follows(first.tool_result, second.tool_result)
        and all(_message_follows(each, _messages(second)) for each in _messages(first))
    )


def _names(when: When) -> tuple[str, ...]:
    return () if isinstance(when.tools, bool | None) else listed(when.tools)


def _tools_follow(first: object, second: object, is_named: bool) -> bool:
    """Whether tools are offered, or not, as the first says wherever they are as the second says."""
    if not isinstance(first, bool):
        return True
    return second is first or first and is_named


def _among(first: str | tuple[str, ...] | None, second: str | tuple[str, ...] | None) -> bool:
    return first is None or second is not None and set(listed(second)) <= set(listed(first))


def _numbers_follow(first: Numbers | None, second: Numbers | None) -> bool:
    if first is None or first == second:
        return True
    if isinstance(second, int | tuple):
        fits = numbers(first)
        return all(map(fits, second if isinstance(second, tuple) else (second,)))
    given = Range() if second is None else second
    if not isinstance(first, Range) or first.at_least > given.at_least:
        return False
    return first.at_most is None or given.at_most is not None and given.at_most <= first.at_most


def _headers_follow(first: When, second: When) -> bool:
    later = {name.lower(): wanted for name, wanted in second.headers.items()}
    for name, wanted in first.headers.items():
        if name.lower() not in later:
            return False
        given = later[name.lower()]
        if wanted is not None and (given is None or not _text_follows(_text(wanted), _text(given))):
            return False
    return True


def _text(wanted: str | TextIs) -> TextIs:
    return TextIs(exact=wanted) if isinstance(wanted, str) else wanted


def _result_follows(
    first: bool | str | ToolResultIs | None, second: bool | str | ToolResultIs | None
) -> bool:
    if first is None or first is second:
        return True
    if isinstance(first, bool) or isinstance(second, bool | None):
        return first is True and second is not None and second is not False
    wanted, given = _result(first), _result(second)
    return wanted.tool in (None, given.tool) and _text_follows(wanted, given)


def _result(wanted: str | ToolResultIs) -> ToolResultIs:
    return ToolResultIs(tool=wanted) if isinstance(wanted, str) else wanted


def _messages(when: When) -> list[MessageIs]:
    every = when.message if isinstance(when.message, tuple) else (when.message,)
    return [MessageIs(exact=each) if isinstance(each, str) else each for each in every if each is not None]


def _message_follows(wanted: MessageIs, given: Sequence[MessageIs]) -> bool:
    """Whether one of the conditions `given` is enough for `wanted`."""
    return any(_is_of(wanted, each) and _text_follows(wanted, each) for each in given)


def _is_of(wanted: MessageIs, given: MessageIs) -> bool:
    """Whether the message that is looked at for `given` is one that is looked at for `wanted`."""
    if wanted.which == "any":
        return wanted.role in (None, given.role)
    return (wanted.which, wanted.role) == (given.which, given.role)


def _text_follows(wanted: TextIs, given: TextIs) -> bool:
    """Whether every text that is `given` is `wanted`."""
    if wanted.exact is None and wanted.contains is None and wanted.regex is None:
        return True
    if given.ignore_case and not wanted.ignore_case:
        return False
    fold = folded_text if wanted.ignore_case else str
    exact = None if given.exact is None else [fold(text) for text in listed(given.exact)]
    if wanted.exact is not None:
        allowed = {fold(text) for text in listed(wanted.exact)}
        if exact is None or not allowed.issuperset(exact):
            return False
    if wanted.contains is not None:
        parts = [fold(text) for text in listed(wanted.contains)]
        have = exact if exact is not None else [fold(text) for text in listed(given.contains or ())]
        if not have or not all(any(part in text for part in parts) for text in have):
            return False
    same = (wanted.regex, wanted.ignore_case) == (given.regex, given.ignore_case)
    return wanted.regex is None or same
