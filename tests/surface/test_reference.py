"""The generated pages: they are up to date, and each fact has one row."""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from app.core.settings import settings_table
from scripts.generated_page import DOCS, MARKER, Page
from scripts.reference_pages import PAGES
from scripts.surface import stored_surface
from vllm_facts.facts import OPTIONS

FIRST_CELL = re.compile(r"^\| `([^`|]+)`[^|]* \| ", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def first_cells(page: Path) -> list[str]:
    """Returns the names that have a row in a table of the page."""
    return FIRST_CELL.findall(FENCE.sub("", page.read_text("utf-8")))


@cache
def made(make_page: Callable[[], Page]) -> Page:
    return make_page()


PAGES_OF_ROUTES = ("routes_page", "admin_page", "metrics_page")
"""Pages about a server with every feature."""


def page_parameter(make_page: Callable[[], Page]) -> ParameterSet:
    """Returns a parameter of tests, which has the extras that its page needs."""
    marks: list[pytest.MarkDecorator] = []
    if make_page.__name__ in PAGES_OF_ROUTES:
        marks = [pytest.mark.grpc, pytest.mark.tracing]
    return pytest.param(make_page, id=make_page.__name__, marks=marks)


@pytest.mark.parametrize("make_page", list(map(page_parameter, PAGES)))
def test_generated_page_is_up_to_date(make_page: Callable[[], Page]) -> None:
    page = made(make_page)
    assert page.path.read_text("utf-8") == page.markdown(), "run: python -m scripts.reference_pages"


@pytest.mark.grpc
@pytest.mark.tracing
def test_generator_script_lists_every_generated_reference_page() -> None:
    generated = {page.name for page in DOCS.glob("*.md") if page.read_text().startswith(MARKER)}
    assert generated == {made(make_page).name for make_page in PAGES}


def test_every_setting_is_documented_once() -> None:
    rows = Counter(first_cells(DOCS / "reference-settings.md"))
    assert {row.name: rows[row.name] for row in settings_table().rows if rows[row.name] != 1} == {}


def test_every_route_is_documented_once() -> None:
    pages = (DOCS / "reference-routes.md", DOCS / "reference-admin.md")
    rows = Counter(name for page in pages for name in first_cells(page))
    paths = {
        re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", line.split()[1])
        for configuration in stored_surface()["configurations"].values()
        for line in configuration["routes"]
    }
    assert {path: rows[path] for path in paths if rows[path] != 1} == {}


def test_every_metric_is_documented_once() -> None:
    rows = Counter(first_cells(DOCS / "reference-metrics.md"))
    families = {
        name
        for configuration in stored_surface()["configurations"].values()
        for name in configuration["metric families"]
        if not name.endswith("_created")
    }
    assert {name: rows[name] for name in families if rows[name] != 1} == {}


def test_every_option_of_vllm_is_documented_once() -> None:
    rows = Counter(first_cells(DOCS / "reference-options.md"))
    names = {f"--{name}" for name in OPTIONS}
    listed_apart = {f"--{name}" for name, option in OPTIONS.items() if option.unplayed}
    assert {name for name in names if rows[name] != 1 + (name in listed_apart)} == set()


def test_every_hook_is_documented_once() -> None:
    names = [cell.partition("(")[0] for cell in first_cells(DOCS / "reference-hooks.md")]
    assert sorted(names) == sorted(import_module("app.extensions.plugins.registry").HOOKS)


def test_every_key_of_a_rule_is_documented_once() -> None:
    sections = {
        text.partition("\n")[0]: text
        for text in (DOCS / "reference-scripts.md").read_text("utf-8").split("\n## ")
    }
    rules = import_module("app.extensions.scripts.rules")
    for heading, kind in (("When", rules.When), ("Then", rules.Then), ("Rule", rules.Rule)):
        assert FIRST_CELL.findall(sections[heading]) == list(kind.__struct_encode_fields__)


def test_every_row_of_a_generated_page_has_a_description() -> None:
    undocumented = [
        f"{page.name}: {row}"
        for page in DOCS.glob("reference-*.md")
        if page.name not in ("reference-options.md", "reference-extensions.md")
        for row in page.read_text("utf-8").splitlines()
        if row.startswith("| `") and row.split(" | ")[-1].strip(" |") == ""
    ]
    assert undocumented == []
