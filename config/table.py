"""The table of all settings, derived from the declarations in `config.settings`."""

from dataclasses import fields
from typing import cast

from config.fields import Setting, rows
from config.settings import Settings

ROOMS: dict[str, type] = {field.name: cast(type, field.type) for field in fields(Settings)}
"""Group name to its dataclass, in the order of `Settings`."""

TABLE: tuple[Setting, ...] = tuple(row for group, room in ROOMS.items() for row in rows(room, group))

BY_NAME: dict[str, Setting] = {row.name: row for row in TABLE}
