"""The surface of a server: settings, commands, routes, middleware, streams and metric families."""

import json
import re

import pytest

from app.core.built_in import enabled_extensions, present_extensions
from app.core.settings import load
from scripts.surface import CONFIGURATIONS, SURFACE_FILE, is_flag, stored_surface, surface
from tests.running_server import ROOT
from tests.surface.test_documents import ROWS, SEEDS


@pytest.mark.grpc
@pytest.mark.tracing
def test_exported_surface_equals_the_stored_surface() -> None:
    """After an intended change: python -m scripts.surface --write.

    What absent extensions add is stored in extensions.json, and not expected.
    """
    assert surface() == stored_surface()


NOT_CONFIGURED = {
    "datasets": "needs a file, and adds no routes",
    "recording": "needs a file",
    "grpc": "serves no HTTP routes",
    "llm": "needs a model",
    "render_service": "needs a service, and adds no routes",
    "cache_groups": "adds no routes",
    "handoff": "adds no routes",
    "kv_offload": "adds no routes",
    "workbench_commands": "has commands only",
}
"""Extensions that no configuration of the surface has, and why."""


def test_every_app_extension_is_enabled_in_a_surface_configuration() -> None:
    shown = set()
    for flags in CONFIGURATIONS.values():
        enabled = enabled_extensions(load(tuple(filter(is_flag, flags)), {}))
        shown.update(extension.name for extension in enabled)
    present = {extension.name for extension in present_extensions()}
    assert present - shown - set(NOT_CONFIGURED) == set(), (
        "add a flag that turns it on to EVERY_FEATURE in scripts/surface.py"
    )


def test_comparison_page_names_existing_settings_commands_and_files() -> None:
    """Those of absent extensions exist in the stored surface."""
    stored = json.loads(SURFACE_FILE.read_text("utf-8"))
    here_column = " ".join(cell for _, cell, _ in ROWS)
    flags = set(re.findall(r"--([a-z][a-z-]+)", here_column))
    assert flags <= set(stored["settings"]) and len(flags) > 10
    commands = set(re.findall(r"understudy ([a-z]+)", here_column))
    assert commands <= set(stored["commands"])
    for path in re.findall(r"\]\(([\w.-]+)\)", SEEDS):
        assert (ROOT / "docs" / path).exists()
    assert all((ROOT / path).exists() for path in re.findall(r"`(deploy/\w+)`", here_column))
