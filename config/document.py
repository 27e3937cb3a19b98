"""Fills the tables of docs/configuration.md and docs/serve.md: `python -m config.document`."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from config.settings import SECTIONS, TABLE, Setting
from config.sources import IGNORED, REMOVED
from config.vllm.option import Option
from config.vllm.serve import (
    DEFAULTS,
    GROUPS,
    KEEP_ALIVE,
    OBSOLETE,
    OPTIONS,
    UNREAD,
    effect,
    names_of,
)

DOCS = Path(__file__).parent.parent / "docs"
SETTINGS, SERVE = DOCS / "configuration.md", DOCS / "serve.md"
MADE = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
"""Place of a table in a page, with its name."""


def settings_page() -> str:
    """Returns docs/configuration.md: its text as it stands, and the tables."""
    columns = "setting", "type", "default", "environment", "live", "meaning"
    tables = {
        group: f"{section.__doc__}\n\n"
        + _table(columns, (_setting(row) for row in TABLE if row.group == group))
        for group, section in SECTIONS.items()
    }
    tables["ignored"] = _names(IGNORED)
    successors = ((f"`{name}`", successor) for name, successor in REMOVED.items())
    tables["removed"] = _table(("removed setting", "successor"), successors)
    return _filled(SETTINGS, tables)


def options_page() -> str:
    """Returns docs/serve.md: its text as it stands, and the tables."""
    tables = {
        group: _table(
            ("option", "value", "default", "here"), (_option(*each) for each in members.items())
        )
        for group, members in GROUPS.items()
    }
    defaults = (
        f"* `{name}`: {f'`{value}`' if value else 'empty'}" for name, value in DEFAULTS.items()
    )
    variables = [
        (f"`{name}`", f"Setting `{row.name}`: {row.help}")
        for row in TABLE
        for name in row.env
        if not name.startswith("SIM_") and name not in UNREAD
    ]
    variables.append((f"`{KEEP_ALIVE}`", "Setting `keep-alive-timeout`, in seconds."))
    unplayed = (
        (f"`--{name}`", facts.unplayed) for name, facts in OPTIONS.items() if facts.unplayed
    )
    tables["defaults"] = "\n".join(defaults)
    tables["variables"] = _table(("variable", "here"), variables)
    tables["unplayed"] = _table(("option", "about"), unplayed)
    tables["obsolete"] = _names(OBSOLETE)
    return _filled(SERVE, tables)


def _filled(page: Path, tables: Mapping[str, str]) -> str:
    return MADE.sub(lambda at: f"{at[1]}\n{tables[at[2]]}\n\n{at[3]}", page.read_text("utf-8"))


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = tuple(columns)
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)
    )


def _names(flags: Iterable[str]) -> str:
    return ", ".join(f"`--{name}`" for name in sorted(flags))


def _setting(row: Setting) -> tuple[str, ...]:
    kind = f"{row.kind.name} ({row.about.unit})" if row.about.unit else row.kind.name
    default = row.write(row.default)
    shown = "empty" if default in ("", "[]", "{}") else f"`{default}`"
    rules = "; ".join(filter(None, (row.limits, *(rule.text for rule in row.rules))))
    also = f" Also `{'`, `'.join(row.about.also)}`." if row.about.also else ""
    meaning = (
        row.help
        + (f" The value {rules}." if rules else "")
        + (" Never shown." if row.about.secret else "")
    )
    variables = " ".join(f"`{name}`" for name in row.env)
    return (
        f"`{row.name}`",
        kind,
        shown,
        variables,
        "live" if row.about.live else "",
        meaning + also,
    )


def _option(name: str, facts: Option) -> tuple[str, ...]:
    names = " ".join(f"`{form}`" for form in names_of(name))
    kind = (
        ""
        if facts.kind == "switch"
        else " ".join(f"`{choice}`" for choice in facts.choices) or facts.kind
    )
    default = "" if facts.default is msgspec.UNSET else f"`{json.dumps(facts.default)}`"
    return (names, f"{kind}{', several' if facts.many else ''}", default, effect(name))


if __name__ == "__main__":
    SETTINGS.write_text(settings_page(), "utf-8")
    SERVE.write_text(options_page(), "utf-8")
