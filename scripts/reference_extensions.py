"""The generated page of the extensions, and what the site shows about each one.

Reads sources and the stored surface only, so that the environment of the site needs no package.
"""

import ast
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from scripts.generated_page import Page, Section, code, one_line

ROOT = Path(__file__).resolve().parent.parent
EXTENSIONS = ROOT / "app" / "extensions"
SURFACE = ROOT / "tests" / "surface" / "extensions.json"


def extensions_page() -> Page:
    """Returns the page of all extensions."""
    contract = import_module("app.core.extensions").Extension
    rows = []
    for extension in import_module("app.core.built_in").present_extensions():
        settings = parts().get(extension.name, {}).get("settings", ())
        enablement = "depends on settings"
        if extension.is_enabled.__func__ is contract.is_enabled.__func__:
            enablement = "always"
        rows.append(
            (
                code(extension.name),
                one_line(summary(extension.name)),
                ", ".join(map(code, extension.requires)),
                enablement,
                ", ".join(map(code, settings)),
            )
        )
    columns = ("extension", "provides", "requires", "on", "settings")
    return Page("reference-extensions.md", "Extensions", [Section("All", columns, rows)])


def extension_page(name: str) -> str:
    """Returns the page of one extension on the site: its docstring, then what it adds."""
    part = parts()[name]
    sections = [
        Section("Settings", ("setting",), [(code(text),) for text in part.get("settings", ())]),
        Section("Commands", ("command",), [(code(text),) for text in part.get("commands", ())]),
        Section("Routes", ("route",), [(code(text),) for text in routes(part)]),
        Section("Metrics", ("family",), [(code(text),) for text in families(part)]),
    ]
    tables = [section.markdown() for section in sections if section.rows]
    text = re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", docstring(name))
    return "\n".join([f"# Extension {name}", "", text, "", *tables])


def parts() -> dict[str, dict[str, Any]]:
    """Returns what each extension adds to the surface, by the name of the extension."""
    stored: dict[str, dict[str, Any]] = json.loads(SURFACE.read_text("utf-8"))
    return dict(sorted(stored.items()))


def routes(part: dict[str, Any]) -> list[str]:
    """Returns the routes of all configurations as `METHOD path`."""
    configurations = part.get("configurations", {}).values()
    lines = {line for surface in configurations for line in surface.get("routes", ())}
    return sorted(line.rpartition(" ")[0] for line in lines)


def families(part: dict[str, Any]) -> list[str]:
    """Returns the metric families of all configurations."""
    configurations = part.get("configurations", {}).values()
    names = {name for surface in configurations for name in surface.get("metric families", ())}
    return sorted(name for name in names if not name.endswith("_created"))


def docstring(name: str) -> str:
    """Returns the docstring of the package of an extension."""
    source = (EXTENSIONS / name / "__init__.py").read_text("utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def summary(name: str) -> str:
    """Returns the first line of the docstring."""
    return docstring(name).partition("\n")[0]
