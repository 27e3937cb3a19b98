"""How a setting is declared: one dataclass field that carries everything that is known about it."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from config.kinds import DURATION, JSON, Kind, kind_of
from config.rules import Rule

T = TypeVar("T")
MASK = "***"
_METADATA = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the settings table."""

    name: str
    """Flag (without its dashes in front) and YAML key."""
    attribute: str
    """Field of its room's dataclass."""
    kind: Kind
    unit: str
    default: Any
    env: tuple[str, ...]
    """Environment variables, the strongest first."""
    help: str
    live: bool
    """May change while the server runs."""
    secret: bool
    path: bool
    """May name a file or folder."""
    rules: tuple[Rule, ...]
    group: str
    """Room: attribute of `Settings`."""

    @property
    def type(self) -> str:
        return self.kind.name

    def shown(self, value: Any, masked: bool = True) -> Any:
        """`value` as it is logged: durations as text, lists as lists, secrets as ``***`` unless empty."""
        if self.secret and masked and value:
            return MASK
        if self.type == DURATION:
            return self.kind.write(value)
        if self.type == JSON:
            return None if value is None else json.loads(value)
        return list(value) if isinstance(value, tuple) else value


def setting(
    default: T,
    *,
    help: str,
    unit: str = "",
    env: Sequence[str] = (),
    live: bool = False,
    rule: Rule | Sequence[Rule] = (),
    secret: bool = False,
    path: bool = False,
) -> T:
    """Declare a dataclass field as a setting; see `Setting`.

    `env` names further environment variables, looked at after ``SIM_<NAME>``.
    """
    rules = (rule,) if isinstance(rule, Rule) else tuple(rule)
    told = dict(help=help, unit=unit, env=tuple(env), live=live, rules=rules, secret=secret, path=path)
    return dataclasses.field(default=default, metadata={_METADATA: told})


def rows(room: type, group: str = "") -> tuple[Setting, ...]:
    """The table rows of a room's dataclass."""
    hints = get_type_hints(room, include_extras=True)
    return tuple(_row(field, kind_of(hints[field.name]), group) for field in dataclasses.fields(room))


def _row(field: "dataclasses.Field[Any]", kind: Kind, group: str) -> Setting:
    told = dict(field.metadata[_METADATA])
    env = (f"SIM_{field.name.upper()}", *told.pop("env"))
    name = field.name.replace("_", "-")
    return Setting(
        name=name, attribute=field.name, kind=kind, default=field.default, env=env, group=group, **told
    )
