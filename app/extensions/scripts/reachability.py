"""Finds rules that can never answer, because an earlier rule answers every request."""

from collections.abc import Sequence
from itertools import product

from app.extensions.scripts.script_file import RuleState


def unreachable(rules: Sequence[RuleState], new: Sequence[RuleState]) -> str:
    """Returns a line about the first of the `new` rules that can never answer.

    `rules` has all rules, in the order of their trial. Returns an empty text if all new rules can
    answer.
    """
    new_ids = {rule.uid for rule in new}
    catch_alls: dict[tuple[str | None, str], RuleState] = {}
    """The first rule that answers everything, by scope and kind of result (empty for all kinds)."""
    for rule in rules:
        kind = rule.action.result_kind
        if rule.uid in new_ids and not rule.answers_refused:
            for key in product((None, rule.scope), ("", kind)):
                earlier = catch_alls.get(key)
                if earlier is not None:
                    return (
                        f"{rule.location}: can never answer: {earlier.location} comes before it "
                        "and answers every request; add a condition or times to that rule, or set "
                        "it last"
                    )
        if rule.answers_everything:
            catch_alls.setdefault((rule.scope, kind), rule)
    return ""
