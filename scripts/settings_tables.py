"""The generated pages of settings and of vLLM's options, and generated sections of other pages.

`python -m scripts.reference_pages` writes them.
"""

import json
from itertools import pairwise
from pathlib import Path

import msgspec

from app.core.server.middleware.control_routes import CONTROL_ROUTES
from app.core.settings import settings_table
from app.core.versions.chain import changes_of
from config.settings import Setting
from config.sources import IGNORED, REMOVED
from scripts.generated_page import DOCS, Page, Section, code, linked, table
from vllm_facts.facts import GROUPS, OPTIONS
from vllm_facts.history import read_history
from vllm_facts.option import Option
from vllm_facts.options import effect, names_of
from vllm_facts.removal import removal_of
from vllm_facts.serve import DEFAULTS, KEEP_ALIVE, UNREAD
from vllm_facts.version import DESCRIBED, changing_versions

VERSIONS_PAGE = DOCS / "versions.md"
ACCESS_PAGE = DOCS / "access.md"
START = "<!-- made: {} -->\n"
END = "<!-- end -->"
"""Place of a generated section in a page."""
HEADINGS = {
    "tls": "TLS",
    "kvcache": "KV cache",
    "kv_index": "KV index",
    "recording": "Replay",
    "datasets": "Dataset",
    "faults": "Failures",
    "wsgi_middleware": "Middleware",
    "sagemaker": "SageMaker",
    "tool_calls": "Choice of tools",
    "anthropic": "Messages",
    "devmode": "Development",
    "openapi": "OpenAPI",
    "llm": "Real engine",
    "lora": "LoRA",
    "api": "API",
}
"""Headings of groups whose names would not do."""


def settings_page() -> Page:
    """Returns the page of all settings."""
    settings = settings_table()
    columns = ("setting", "value", "meaning")
    sections = []
    for group in settings.sections:
        rows = [_setting_cells(row) for row in settings.rows if row.group == group]
        sections.append(Section(_heading(group), columns, rows))
    ignored = [(f"`--{name}`", "accepted, without effect") for name in sorted(IGNORED)]
    sections.append(Section("Ignored flags", ("flag", "effect"), ignored))
    successors = [(f"`{name}`", successor) for name, successor in REMOVED.items()]
    sections.append(Section("Removed settings", ("removed setting", "successor"), successors))
    return Page("reference-settings.md", "Settings", sections)


def options_page() -> Page:
    """Returns the page of the options of `serve`."""
    columns = ("option", "value", "here")
    sections = []
    for group, options in GROUPS.items():
        rows = [_option_cells(name, option) for name, option in options.items()]
        sections.append(Section(group, columns, rows))
    defaults = [(f"`{name}`", code(value) or "empty") for name, value in DEFAULTS.items()]
    sections.append(Section("Defaults that differ", ("setting", "default of serve"), defaults))
    sections.append(Section("Environment variables", ("variable", "here"), _variables()))
    unplayed = [
        (f"`--{name}`", option.unplayed) for name, option in OPTIONS.items() if option.unplayed
    ]
    sections.append(Section("Accepted without effect", ("option", "about"), unplayed))
    oldest = DESCRIBED[0]
    removed = [
        (f"`{form}`", removal_of(form, oldest).removeprefix("vLLM removed it "))
        for form, lifetime in read_history().options.items()
        if lifetime.is_gone_in(oldest)
    ]
    sections.append(Section("Options of earlier versions", ("option", "removed"), removed))
    return Page("reference-options.md", "Options of vLLM", sections)


def versions_page() -> str:
    """Returns docs/versions.md: the present text with new sections."""
    sections = [
        f"## New in {name}\n\nThese differences between {earlier} and {name} affect clients:\n\n"
        + table(("area", earlier, name), _changes(name))
        for earlier, name in reversed([*pairwise(changing_versions())])
        if changes_of(name)
    ]
    return _page_with_section(VERSIONS_PAGE, "versions", "\n\n".join(sections))


def access_page() -> str:
    """Returns docs/access.md: the present text with a new table of the control routes."""
    rows = []
    for name, paths in CONTROL_ROUTES.items():
        routes = []
        for path in paths:
            text = f"`{path}`"
            if path.endswith("{all}"):
                text = f"all routes under `{path.removesuffix('{all}')}`"
            routes.append(text)
        rows.append((name, ", ".join(routes)))
    return _page_with_section(ACCESS_PAGE, "control-routes", table(("Group", "Routes"), rows))


def _page_with_section(page: Path, name: str, text: str) -> str:
    head, start, tail = page.read_text("utf-8").partition(START.format(name))
    _, end, foot = tail.partition(END)
    return f"{head}{start}\n{text}\n\n{end}{foot}"


def _heading(group: str) -> str:
    return HEADINGS.get(group, group.replace("_", " ").capitalize())


def _changes(version: str) -> list[tuple[str, str, str]]:
    """Returns area, old behavior and new behavior of the changes of a version."""
    return sorted((change.area, change.before, change.after) for change in changes_of(version))


def _variables() -> list[tuple[str, str]]:
    """Returns the environment variables of vLLM that `serve` reads, with their settings."""
    variables = []
    for row in settings_table().rows:
        for name in row.env:
            if not name.startswith("SIM_") and name not in UNREAD:
                variables.append((f"`{name}`", linked(f"Setting `{row.name}`: {row.help}")))
    variables.append((f"`{KEEP_ALIVE}`", "Setting `keep-alive-timeout`, in seconds."))
    return variables


def _setting_cells(row: Setting) -> tuple[str, ...]:
    kind = row.kind.name
    if row.about.unit:
        kind += f" ({row.about.unit})"
    default = row.write(row.default)
    if default in ("[]", "{}"):
        default = ""
    variables = " ".join(f"`{name}`" for name in row.env)
    value = f"{kind}, default {code(default) or 'empty'}<br>{variables}"
    return (f"`{row.name}`", value, _meaning(row))


def _meaning(row: Setting) -> str:
    text = row.help
    rules = "; ".join(filter(None, (row.limits, *(rule.text for rule in row.rules))))
    if rules:
        text += f" The value {rules}."
    if row.about.live:
        text += " Live."
    if row.about.secret:
        text += " Never shown."
    if row.about.also:
        text += f" Also `{'`, `'.join(row.about.also)}`."
    return linked(text)


def _option_cells(name: str, option: Option) -> tuple[str, ...]:
    forms = "<br>".join(f"`{form}`" for form in names_of(name))
    kind = ""
    if option.kind != "switch":
        kind = " ".join(f"`{choice}`" for choice in option.choices) or option.kind
    if option.many:
        kind += ", several"
    if option.default is not msgspec.UNSET:
        kind = f"{kind}<br>default {code(json.dumps(option.default))}".removeprefix("<br>")
    sentences = [effect(name, settings_table())]
    if option.since:
        sentences.append(f"From vLLM {option.since} on.")
    sentences += [f"`{value}`: from vLLM {version} on." for value, version in option.later.items()]
    sentences += [f"`{value}`: not in vLLM {version}." for value, version in option.gone.items()]
    return (forms, kind, linked(" ".join(filter(None, sentences))))
