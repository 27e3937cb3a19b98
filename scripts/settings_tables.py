"""Fills the tables of docs/configuration.md, docs/serve.md and docs/versions.md.

$ python -m scripts.settings_tables
"""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import msgspec

from app.core.protocol.versions import VERSIONS, Feature
from app.core.settings import settings_table
from config.settings import Setting
from config.sources import IGNORED, REMOVED
from config.vllm.facts import GROUPS, OBSOLETE, OPTIONS
from config.vllm.option import Option
from config.vllm.options import effect, names_of
from config.vllm.serve import DEFAULTS, KEEP_ALIVE, UNREAD

DOCS = Path(__file__).parent.parent / "docs"
SETTINGS = DOCS / "configuration.md"
SERVE = DOCS / "serve.md"
VERSIONS_PAGE = DOCS / "versions.md"
GENERATED = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
"""Place of a table in a page, with its name."""


def settings_page() -> str:
    """Returns docs/configuration.md: the present text with new tables."""
    columns = ("setting", "type", "default", "environment", "live", "meaning")
    tables = {}
    settings = settings_table()
    for group, section in settings.sections.items():
        rows = [_setting_cells(row) for row in settings.rows if row.group == group]
        tables[group] = f"{section.__doc__}\n\n{_table(columns, rows)}"
    tables["ignored"] = _flag_list(IGNORED)
    successors = [(f"`{name}`", successor) for name, successor in REMOVED.items()]
    tables["removed"] = _table(("removed setting", "successor"), successors)
    return _filled(SETTINGS, tables)


def options_page() -> str:
    """Returns docs/serve.md: the present text with new tables."""
    columns = ("option", "value", "default", "here")
    tables = {}
    for group, options in GROUPS.items():
        rows = [_option_cells(name, option) for name, option in options.items()]
        tables[group] = _table(columns, rows)
    unplayed = [
        (f"`--{name}`", option.unplayed) for name, option in OPTIONS.items() if option.unplayed
    ]
    tables["defaults"] = "\n".join(
        f"* `{name}`: {_code(value) or 'empty'}" for name, value in DEFAULTS.items()
    )
    tables["variables"] = _table(("variable", "here"), _variables())
    tables["unplayed"] = _table(("option", "about"), unplayed)
    tables["obsolete"] = _flag_list(OBSOLETE)
    return _filled(SERVE, tables)


def versions_page() -> str:
    """Returns docs/versions.md: the present text with new sections."""
    sections = [
        f"## New in {name}\n\nWhat differs for clients between {earlier} and {name}:\n\n"
        + _table(("area", earlier, name), _new_features(name))
        for earlier, name in pairwise(VERSIONS)
    ]
    return _filled(VERSIONS_PAGE, {"versions": "\n\n".join(sections)})


def _new_features(version: str) -> list[tuple[str, str, str]]:
    """Returns area, old behavior and new behavior of the features that begin with a version."""
    return sorted(
        (feature.area, feature.old_behavior, feature.new_behavior)
        for feature in Feature
        if feature.since == version
    )


def _variables() -> list[tuple[str, str]]:
    """Returns the environment variables of vLLM that `serve` reads, with their settings."""
    variables = []
    for row in settings_table().rows:
        for name in row.env:
            if not name.startswith("SIM_") and name not in UNREAD:
                variables.append((f"`{name}`", f"Setting `{row.name}`: {row.help}"))
    variables.append((f"`{KEEP_ALIVE}`", "Setting `keep-alive-timeout`, in seconds."))
    return variables


def _filled(page: Path, tables: Mapping[str, str]) -> str:
    def fill(place: re.Match[str]) -> str:
        if place[2] not in tables:
            return place[0]  # the extension with these settings was deleted
        return f"{place[1]}\n{tables[place[2]]}\n\n{place[3]}"

    return GENERATED.sub(fill, page.read_text("utf-8"))


def _table(columns: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _flag_list(names: Iterable[str]) -> str:
    return ", ".join(f"`--{name}`" for name in sorted(names))


def _code(text: str) -> str:
    if not text:
        return ""
    return f"`{text}`"


def _setting_cells(row: Setting) -> tuple[str, ...]:
    kind = row.kind.name
    if row.about.unit:
        kind += f" ({row.about.unit})"
    default = row.write(row.default)
    if default in ("[]", "{}"):
        default = ""
    live = ""
    if row.about.live:
        live = "live"
    variables = " ".join(f"`{name}`" for name in row.env)
    return (f"`{row.name}`", kind, _code(default) or "empty", variables, live, _meaning(row))


def _meaning(row: Setting) -> str:
    text = row.help
    rules = "; ".join(filter(None, (row.limits, *(rule.text for rule in row.rules))))
    if rules:
        text += f" The value {rules}."
    if row.about.secret:
        text += " Never shown."
    if row.about.also:
        text += f" Also `{'`, `'.join(row.about.also)}`."
    return text


def _option_cells(name: str, option: Option) -> tuple[str, ...]:
    forms = " ".join(f"`{form}`" for form in names_of(name))
    kind = ""
    if option.kind != "switch":
        kind = " ".join(f"`{choice}`" for choice in option.choices) or option.kind
    if option.many:
        kind += ", several"
    default = ""
    if option.default is not msgspec.UNSET:
        default = f"`{json.dumps(option.default)}`"
    sentences = [effect(name, settings_table())]
    if option.since:
        sentences.append(f"From vLLM {option.since} on.")
    sentences += [f"`{value}`: from vLLM {name} on." for value, name in option.later.items()]
    sentences += [f"`{value}`: not in vLLM {name}." for value, name in option.gone.items()]
    return (forms, kind, default, " ".join(filter(None, sentences)))


if __name__ == "__main__":
    SETTINGS.write_text(settings_page(), "utf-8")
    SERVE.write_text(options_page(), "utf-8")
    VERSIONS_PAGE.write_text(versions_page(), "utf-8")
