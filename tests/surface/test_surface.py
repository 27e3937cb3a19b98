"""The surface of a server: settings, commands, routes, middleware, streams and metric families.

It is complete only with all extensions, so these tests are left out where one was deleted
(conftest.py).
"""

import json
import re

from app.core.cli import listed_commands
from app.core.settings import settings_table
from scripts.settings_tables import SERVE, options_page
from scripts.surface import SURFACE_FILE, surface
from tests.application import app_of
from tests.core.api.test_memory import sizes
from tests.running_server import ROOT
from tests.surface.test_documents import ROWS, SEEDS

BY_NAME = settings_table().by_name


def test_the_surface_is_the_stored_one() -> None:
    """After an intended change: python -m scripts.surface --write."""
    stored = json.loads(SURFACE_FILE.read_text("utf-8"))
    assert surface() == stored


def test_the_settings_commands_and_files_of_the_seeds_are_there() -> None:
    here = " ".join(cell for _, cell, _ in ROWS)
    flags = set(re.findall(r"--([a-z][a-z-]+)", here))
    assert flags <= set(BY_NAME) and len(flags) > 10
    commands = set(re.findall(r"python -m app ([a-z]+)", here))
    assert commands <= set(listed_commands())
    for path in re.findall(r"\]\(([\w.-]+)\)", SEEDS):
        assert (ROOT / "docs" / path).exists()
    assert all((ROOT / path).exists() for path in re.findall(r"`(deploy/\w+)`", here))


CACHES_OF_EXTENSIONS = {
    "client audit",
    "fault scripts",
    "index blocks",
    "index key roots",
    "index keys",
    "index tails",
    "index tokenizers",
    "responses",
    "schemas",
}


def test_caches_of_extensions_are_described_with_those_of_the_core() -> None:
    names = set(sizes(app_of("--enable-kvcache", "--kv-index")))
    assert names >= CACHES_OF_EXTENSIONS


def test_the_page_of_vllm_options_is_not_stale() -> None:
    assert SERVE.read_text("utf-8") == options_page(), "run: python -m scripts.settings_tables"
