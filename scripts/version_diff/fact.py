"""A fact about a version of vLLM, such as an option with its type and its default."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal[
    "option",
    "JSON key",
    "environment variable",
    "field",
    "route",
    "metric",
    "KV event",
    "tool parser",
    "reasoning parser",
    "quantization",
    "architecture",
    "suffix",
    "error",
    "code",
]
UNKNOWN = "unknown"
"""Stands for what cannot be read without running vLLM."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact.

    Attributes:
        owner: What the name belongs to, such as the class of a field; may be empty. Facts of
            several owners that change alike are one line of a list.
        attributes: Texts by name. Values that cannot be read begin with `UNKNOWN`.
        area: Of code, the folder with its file. It does not identify the fact: code may move.
    """

    kind: Kind
    name: str
    owner: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    area: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies the fact in all versions."""
        return (self.kind, self.owner, self.name)


def by_key(facts: Iterable[Fact]) -> dict[tuple[str, str, str], Fact]:
    """Returns facts by their keys.

    Two facts can have the same key, for example a metric that vLLM creates in one of two ways. Then
    attributes that differ have both values.
    """
    merged: dict[tuple[str, str, str], Fact] = {}
    for fact in facts:
        first = merged.get(fact.key)
        if first is not None:
            fact = replace(fact, attributes=dict(_merged_attributes(first, fact)))
        merged[fact.key] = fact
    return merged


def _merged_attributes(first: Fact, second: Fact) -> Iterator[tuple[str, str]]:
    for name in {**first.attributes, **second.attributes}:
        values = [fact.attributes[name] for fact in (first, second) if fact.attributes.get(name)]
        yield name, " or ".join(dict.fromkeys(values))
