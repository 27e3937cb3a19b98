"""Routing policies of a fleet, including those of plugins."""

from collections.abc import Mapping, Sequence
from functools import partial

from app.core.policies import PolicyMaker
from app.extensions.lab.load.policies import (
    POLICIES,
    PREFIX_AWARE,
    RANDOM,
    ROUND_ROBIN,
    make_policy,
)
from config import UsageError

DEFAULT_POLICIES = (RANDOM, ROUND_ROBIN, PREFIX_AWARE)
"""Policies that are compared by default, before those of plugins."""


def policies_of(
    names: Sequence[str], plugin_policies: Mapping[str, PolicyMaker]
) -> dict[str, PolicyMaker]:
    """Returns the makers of these policies; without names, of the default and all plugin policies.

    Raises:
        UsageError: A name is unknown.
    """
    makers: dict[str, PolicyMaker] = {name: partial(make_policy, name) for name in POLICIES}
    makers |= plugin_policies
    for name in names:
        if name not in makers:
            raise UsageError(
                f"argument --policies: invalid choice: {name!r}"
                f" (choose from {', '.join(map(repr, makers))})"
            )
    return {name: makers[name] for name in names or (*DEFAULT_POLICIES, *plugin_policies)}
