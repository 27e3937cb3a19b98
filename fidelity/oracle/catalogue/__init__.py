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
from fidelity.oracle.older_requests import older_case
from vllm_facts.names import read_names

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


def catalogue_of(version: str) -> list[Case]:
    """Returns all cases, with the requests as a release spells them."""
    absent = frozenset(read_names().absent_fields(version))
    return [older_case(case, absent) for case in CATALOGUE]


def cases_of(configuration: str, version: str) -> list[Case]:
    """Returns the cases of a configuration of a release, in the order of the catalogue."""
    return [case for case in catalogue_of(version) if case.configuration == configuration]
