"""Writes the tables of docs/serve.md: `python -m config.vllm.document`."""

import json
from pathlib import Path

import msgspec

from config.settings import TABLE
from config.vllm.command_line import OBSOLETE, names_of
from config.vllm.meanings import DEFAULTS, KEEP_ALIVE, MEANINGS
from config.vllm.options import Option, groups, options

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"

MARK = "<!-- All below is written by `python -m config.vllm.document`: change config/vllm instead. -->\n"
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
_HEAD = "| option | value | default | here |\n|---|---|---|---|\n"
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


def render() -> str:
    """Returns the page: its introduction as it stands, and the tables."""
    introduction = PAGE.read_text("utf-8").partition(MARK)[0]
    shown = {name: f"`{value}`" if value else "empty" for name, value in DEFAULTS.items()}
    defaults = "".join(f"* `{name}`: {value}\n" for name, value in shown.items())
    variables = "".join(
        f"| `{name}` | Setting `{row.name}`: {row.help} |\n"
        for row in TABLE
        for name in row.env
        if not name.startswith("SIM_")
    )
    variables += f"| `{KEEP_ALIVE}` | Setting `keep-alive-timeout`, in seconds. |\n"
    parts = [introduction + MARK + _DEFAULTS + defaults, _VARIABLES + variables + _OTHER_VARIABLES]
    for group, members in groups().items():
        head = f"## {group.capitalize()}\n\n{WHY[group]}\n\n{_HEAD}"
        parts.append(head + "".join(_line(option, facts) for option, facts in members.items()))
    unplayed = "".join(
        f"| `--{name}` | {facts.unplayed} |\n" for name, facts in options().items() if facts.unplayed
    )
    names = ", ".join(f"`--{name}`" for group in OBSOLETE.values() for name in sorted(group))
    return "\n".join([*parts, _UNPLAYED + unplayed, f"{_OBSOLETE}{names}.\n"])


def _line(name: str, facts: Option) -> str:
    effect = MEANINGS[name].effect if name in MEANINGS else ""
    names = " ".join(f"`{form}`" for form in names_of(name))
    kind = "" if facts.kind == "switch" else " ".join(f"`{choice}`" for choice in facts.choices) or facts.kind
    default = "" if facts.default is msgspec.UNSET else f"`{json.dumps(facts.default)}`"
    return f"| {names} | {kind}{', several' if facts.many else ''} | {default} | {effect} |\n"


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
