"""The generated pages: they are up to date, and each fact has one row."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.built_in import BUILT_IN, present_extensions
from app.core.settings import settings_table
from scripts.generated_page import DOCS, MARKER, Page
from scripts.reference_pages import PAGES
from scripts.surface import stored_surface

FIRST_CELL = re.compile(r"^\| `([^`|]+)`[^|]* \| ", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
complete = pytest.mark.skipif(
    len(present_extensions()) < len(BUILT_IN), reason="the pages describe all extensions"
)


def first_cells(page: Path) -> list[str]:
    """Returns the names that have a row in a table of the page."""
    return FIRST_CELL.findall(FENCE.sub("", page.read_text("utf-8")))


@complete
@pytest.mark.parametrize("make_page", PAGES, ids=lambda make_page: make_page.__name__)
def test_a_generated_page_is_up_to_date(make_page: Callable[[], Page]) -> None:
    page = make_page()
    assert page.path.read_text("utf-8") == page.markdown(), "run: python -m scripts.reference_pages"


@complete
def test_every_generated_page_is_written_by_the_script() -> None:
    generated = {page.name for page in DOCS.glob("*.md") if page.read_text().startswith(MARKER)}
    assert generated == {make_page().name for make_page in PAGES}


@complete
def test_every_setting_is_documented_once() -> None:
    rows = Counter(first_cells(DOCS / "reference-settings.md"))
    assert {row.name: rows[row.name] for row in settings_table().rows if rows[row.name] != 1} == {}


@complete
def test_every_route_is_documented_once() -> None:
    pages = (DOCS / "reference-routes.md", DOCS / "reference-admin.md")
    rows = Counter(name for page in pages for name in first_cells(page))
    paths = {
        re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", line.split()[1])
        for configuration in stored_surface()["configurations"].values()
        for line in configuration["routes"]
    }
    assert {path: rows[path] for path in paths if rows[path] != 1} == {}


@complete
def test_every_metric_is_documented_once() -> None:
    rows = Counter(first_cells(DOCS / "reference-metrics.md"))
    families = {
        name
        for configuration in stored_surface()["configurations"].values()
        for name in configuration["metric families"]
        if not name.endswith("_created")
    }
    assert {name: rows[name] for name in families if rows[name] != 1} == {}
