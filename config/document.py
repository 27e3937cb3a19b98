"""Writes the tables of docs/configuration.md: `python -m config.document`."""

from pathlib import Path

from config.settings import SECTIONS, TABLE, Setting
from config.sources import IGNORED, RETIRED

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

MARK = "<!-- All below is written by `python -m config.document`: change config/sections instead. -->\n"
_RETIRED = """\
## Retired settings

Flags, variables and YAML keys of these names still start the server, with a line of warning, until version
0.3. They change nothing. Neither do these flags of klog, of simulators and of vLLM: {ignored}.

| setting | what holds instead |
|---|---|
"""
_HEAD = "| setting | type | default | environment | live | meaning |\n|---|---|---|---|---|---|\n"


def render() -> str:
    """Returns the page: its introduction as it stands, and the tables."""
    introduction = PAGE.read_text("utf-8").partition(MARK)[0]
    sections = [
        f"## {group.capitalize()}\n\n{section.__doc__}\n\n{_HEAD}"
        + "".join(_line(row) for row in TABLE if row.group == group)
        for group, section in SECTIONS.items()
    ]
    ignored = ", ".join(f"`--{name}`" for name in sorted(IGNORED - RETIRED.keys()))
    retired = "".join(f"| `{name}` | {reason} |\n" for name, reason in RETIRED.items())
    return "\n".join([introduction + MARK, *sections, _RETIRED.format(ignored=ignored) + retired])


def _line(row: Setting) -> str:
    kind = f"{row.kind.name} ({row.unit})" if row.unit else row.kind.name
    default = row.write(row.default)
    shown = "empty" if default in ("", "[]", "{}") else f"`{default}`"
    rules = "; ".join(filter(None, (row.limits, *(rule.text for rule in row.rules))))
    also = f" Also `{'`, `'.join(row.also)}`." if row.also else ""
    meaning = row.help + (f" The value {rules}." if rules else "") + (" Never shown." if row.secret else "")
    variables = " ".join(f"`{name}`" for name in row.env)
    cells = (f"`{row.name}`", kind, shown, variables, "live" if row.live else "", meaning + also)
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
