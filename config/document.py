"""Writes the tables of docs/configuration.md and docs/serve.md: `python -m config.document`."""

import json
from pathlib import Path

import msgspec

from config.settings import SECTIONS, TABLE, Setting
from config.sources import IGNORED, RETIRED
from config.vllm.command_line import OBSOLETE, names_of
from config.vllm.meanings import DEFAULTS, KEEP_ALIVE, MEANINGS
from config.vllm.options import Option, groups, options

DOCS = Path(__file__).parent.parent / "docs"
SETTINGS, OPTIONS = DOCS / "configuration.md", DOCS / "serve.md"
MARK = "<!-- All below is written by `python -m config.document`: change {} instead. -->\n"
_RETIRED = """\
## Retired settings

Flags, variables and YAML keys of these names still start the server, with a line of warning, until version
0.3. They change nothing. Neither do these flags of klog, of simulators and of vLLM: {ignored}.

| setting | what holds instead |
|---|---|
"""
_SETTINGS_HEAD = "| setting | type | default | environment | live | meaning |\n|---|---|---|---|---|---|\n"
_DEFAULTS = """
## Defaults

What a line does not say is as in vLLM, where that differs from our settings' own defaults:

"""
_VARIABLES = """\
## Environment variables

| variable | here |
|---|---|
"""
_OTHER_VARIABLES = """\

All others that vLLM reads (`VLLM_ATTENTION_BACKEND`, `VLLM_USE_V1` ...) change nothing. `VLLM_PORT` is no
exception: vLLM's processes find each other by it; requests go to `--port`.
"""
_OPTIONS_HEAD = "| option | value | default | here |\n|---|---|---|---|\n"
_UNPLAYED = """\
## What a client would notice, and does not

The options that change what vLLM answers, and nothing here:

| option | about |
|---|---|
"""
_OBSOLETE = """\
## Options of earlier versions

Accepted, though vLLM 0.32 has them no more; they change nothing: """
WHY = {
    "server": "Others are about web pages, logs and processes that are not here, or about clients' trust.",
    "model": "Others say how weights and tokenizers are read and computed with; there are no weights.",
    "load": "There is nothing to load.",
    "kernels": "There is nothing to compute.",
    "parallel": "One process a data parallel rank plays all devices.",
    "cache": "Others are about memory that is not there.",
    "offload": "Nothing is offloaded.",
    "multimodal": "Whether media are taken: see docs/api.md. The limits are not looked at.",
    "lora": "Adapters are names here: their weights are not read.",
    "observability": "Others ask for measurements of what is not there.",
    "scheduler": "Others cut prompts into the steps of a device; here a prompt takes its time as one.",
    "engine": "Others are about speculation, kernels and graphs.",
}


def settings_page() -> str:
    """Returns docs/configuration.md: its introduction as it stands, and the tables."""
    sections = [
        f"## {group.capitalize()}\n\n{section.__doc__}\n\n{_SETTINGS_HEAD}"
        + "".join(_setting(row) for row in TABLE if row.group == group)
        for group, section in SECTIONS.items()
    ]
    ignored = ", ".join(f"`--{name}`" for name in sorted(IGNORED - RETIRED.keys()))
    retired = "".join(f"| `{name}` | {reason} |\n" for name, reason in RETIRED.items())
    head = _introduction(SETTINGS, "config/sections")
    return "\n".join([head, *sections, _RETIRED.format(ignored=ignored) + retired])


def options_page() -> str:
    """Returns docs/serve.md: its introduction as it stands, and the tables."""
    defaults = (f"* `{name}`: {f'`{value}`' if value else 'empty'}\n" for name, value in DEFAULTS.items())
    variables = [
        f"| `{name}` | Setting `{row.name}`: {row.help} |\n"
        for row in TABLE
        for name in row.env
        if not name.startswith("SIM_")
    ]
    variables.append(f"| `{KEEP_ALIVE}` | Setting `keep-alive-timeout`, in seconds. |\n")
    unplayed = (f"| `--{name}` | {facts.unplayed} |\n" for name, facts in options().items() if facts.unplayed)
    names = ", ".join(f"`--{name}`" for group in OBSOLETE.values() for name in sorted(group))
    parts = [
        _introduction(OPTIONS, "config/vllm") + _DEFAULTS + "".join(defaults),
        _VARIABLES + "".join(variables) + _OTHER_VARIABLES,
        *(
            f"## {group.capitalize()}\n\n{WHY[group]}\n\n{_OPTIONS_HEAD}"
            + "".join(_option(name, facts) for name, facts in members.items())
            for group, members in groups().items()
        ),
        _UNPLAYED + "".join(unplayed),
        f"{_OBSOLETE}{names}.\n",
    ]
    return "\n".join(parts)


def _introduction(page: Path, source: str) -> str:
    mark = MARK.format(source)
    return page.read_text("utf-8").partition(mark)[0] + mark


def _setting(row: Setting) -> str:
    kind = f"{row.kind.name} ({row.unit})" if row.unit else row.kind.name
    default = row.write(row.default)
    shown = "empty" if default in ("", "[]", "{}") else f"`{default}`"
    rules = "; ".join(filter(None, (row.limits, *(rule.text for rule in row.rules))))
    also = f" Also `{'`, `'.join(row.also)}`." if row.also else ""
    meaning = row.help + (f" The value {rules}." if rules else "") + (" Never shown." if row.secret else "")
    variables = " ".join(f"`{name}`" for name in row.env)
    cells = (f"`{row.name}`", kind, shown, variables, "live" if row.live else "", meaning + also)
    return "| " + " | ".join(cells) + " |\n"


def _option(name: str, facts: Option) -> str:
    effect = MEANINGS[name].effect if name in MEANINGS else ""
    names = " ".join(f"`{form}`" for form in names_of(name))
    kind = "" if facts.kind == "switch" else " ".join(f"`{choice}`" for choice in facts.choices) or facts.kind
    default = "" if facts.default is msgspec.UNSET else f"`{json.dumps(facts.default)}`"
    return f"| {names} | {kind}{', several' if facts.many else ''} | {default} | {effect} |\n"


if __name__ == "__main__":
    SETTINGS.write_text(settings_page(), "utf-8")
    OPTIONS.write_text(options_page(), "utf-8")
