"""Finds rules that can never answer, because an earlier rule answers every request."""

from collections.abc import Sequence

from app.extensions.scripts.script_file import RuleState


def unreachable(rules: Sequence[RuleState], new: Sequence[RuleState]) -> str:
    """Returns a line about the first of the `new` rules that can never answer.

    `rules` has all rules, in the order of their trial. Returns an empty text if all new
    rules can answer.
    """
    new_ids = {rule.uid for rule in new}
    catch_alls: list[RuleState] = []
    for rule in rules:
        for earlier in catch_alls:
            if rule.uid in new_ids and answers_all_of(earlier, rule):
                return (
                    f"{rule.location}: can never answer: {earlier.location} comes before it and "
                    "answers every request; add a condition or times to that rule, or set it last"
                )
        if rule.answers_everything:
            catch_alls.append(rule)
    return ""


def answers_all_of(earlier: RuleState, rule: RuleState) -> bool:
    """Returns whether a rule without conditions answers each request that `rule` could answer."""
    if earlier.scope not in (None, rule.scope):
        return False
    kind = earlier.action.result_kind
    return not kind or kind == rule.action.result_kind
