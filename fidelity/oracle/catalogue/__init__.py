"""The catalogue: the requests of the oracle, by area, each with its reason."""

from fidelity.oracle.cases import Case
from fidelity.oracle.catalogue import (
    adapters,
    chat,
    completions,
    guarded,
    messages,
    pooling,
    reasoning,
    responses,
    server,
    tokens,
    tools,
)

MODULES = (
    chat,
    completions,
    tools,
    responses,
    messages,
    tokens,
    guarded,
    adapters,
    reasoning,
    pooling,
    server,
)
"""Modules in the order of their requests: control routes come last."""
CATALOGUE: tuple[Case, ...] = tuple(
    case for module in MODULES for area in module.AREAS for case in area.cases
)
"""All cases, in the order of their requests."""


def cases_of(configuration: str) -> list[Case]:
    """Returns the cases of a configuration, in the order of the catalogue."""
    return [case for case in CATALOGUE if case.configuration == configuration]
