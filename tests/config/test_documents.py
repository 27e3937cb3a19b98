"""What is written about the settings is made from them and is up to date."""

import tomllib
from pathlib import Path

import pytest

from config import VERSION
from config.document import PAGE, render
from config.flags import usage
from config.loader import load
from config.settings import TABLE

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.yaml"))


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text("utf-8") == render(), "run: python -m config.document"


def test_the_page_and_the_help_name_every_setting() -> None:
    page, text = render(), usage()
    for row in TABLE:
        assert f"| `{row.name}` |" in page
        assert all(f"`{name}`" in page for name in row.env)
        assert f"  --{row.name}" in text


def test_there_is_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == VERSION
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads(path: Path) -> None:
    assert load(["--config", str(path)], {}).latency.inter_token_latency > 0


def test_the_profiles_are_there() -> None:
    assert {path.stem for path in EXAMPLES} >= {"minimal", "8b-h100", "70b-tp8", "small-l40s"}
