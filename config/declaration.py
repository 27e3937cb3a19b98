"""How a setting is declared: one field of a section, whose annotation says everything that is known about it.

    max_num_seqs: Annotated[Count, About("Sequences that run at the same time.", unit="sequences")] = 256

What `msgspec.Meta` can say about a value is said with it, and msgspec checks it. A `Rule` says the rest.
"""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

ROUNDING = 1e-9
"""Relative; keeps "30 % of 70ms" from failing at 21ms by a rounding of floats."""

DURATION, JSON, OBJECTS = "duration", "JSON", "list of objects"
"""Mark the types whose texts are not those of msgspec; see `config.kinds`."""

Count = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Duration = Annotated[float, DURATION, Meta(ge=0)]
"""Seconds inside the program, a Go style text outside of it."""
PositiveDuration = Annotated[float, DURATION, Meta(gt=0)]
Json = Annotated[str, JSON]
"""JSON text; in YAML it may be written as YAML."""
Objects = Annotated[tuple[str, ...], OBJECTS]
"""Texts, of which some are JSON objects; in YAML those may be written as mappings."""
NonEmpty = Annotated[str, Meta(pattern=r"\S", description="must not be empty")]
NonEmptyItems = Annotated[tuple[NonEmpty, ...], Meta(description="must not contain an empty item")]
"""A `description` is the sentence of a rule that is not about the size of a number."""


class ConfigError(ValueError):
    """A setting is wrong; its text is one line naming the setting, the value, its source and the rule."""

    status = 1
    """Exit status of a command that it ends."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class UsageError(ConfigError):
    """A command line cannot be understood."""

    status = 2


class Section(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings that belong together; its docstring is their heading in the help and in the documentation."""


class About(Struct, frozen=True):
    """Meaning of a setting, and its other names."""

    help: str
    unit: str = ""
    env: tuple[str, ...] = ()
    """Further environment variables, looked at after ``SIM_<NAME>``."""
    also: tuple[str, ...] = ()
    """Other names, that other programs have for it: flags, YAML keys and ``SIM_`` variables as well."""
    live: bool = False
    """May change while the server runs."""
    secret: bool = False
    path: bool = False
    """May name a file or folder."""


class Rule(Struct, frozen=True):
    """A rule beyond msgspec: a value fits its neighbours, or has a form of its own."""

    text: str
    """Completes the sentence "the value ..."."""
    flaw: Callable[[Any, Any], str]
    """Returns the flaw of (value, its section), worded as `text`; empty when there is none."""


def not_above_share(percent: int, of: str) -> Rule:
    """Refuses values above `percent` % of the section's field `of`."""
    text = f"must not be more than {percent} % of {of.replace('_', '-')}"
    share = percent / 100 * (1 + ROUNDING)
    return Rule(text, lambda value, section: text if value > share * getattr(section, of) else "")


def not_below(other: str) -> Rule:
    """Refuses values below the section's field `other`."""
    text = f"must not be less than {other.replace('_', '-')}"
    return Rule(text, lambda value, section: text if value < getattr(section, other) else "")


def understood_by(read: Callable[[Any], object], text: str) -> Rule:
    """`read` takes the value; the ValueError that it raises for another says what is wrong."""

    def flaw(value: object, section: Section) -> str:
        try:
            read(value)
        except ValueError as error:
            return f"is wrong: {error}"
        return ""

    return Rule(text, flaw)
