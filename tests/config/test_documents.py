"""What is written about the settings is made from them and is up to date."""

import re
import tomllib
from pathlib import Path
from random import Random

import pytest

from app.core.engine.timing import PerRequestTiming
from app.core.settings import load, settings_table
from config import VERSION
from config.command_line import ALL, usage
from scripts.settings_tables import (
    ACCESS_PAGE,
    VERSIONS_PAGE,
    access_page,
    settings_page,
    versions_page,
)

TABLE = settings_table().rows

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.yaml"))


def test_reference_page_and_help_list_every_setting() -> None:
    page = settings_page().markdown()
    text = usage(settings_table(), ALL)
    for row in TABLE:
        assert f"| `{row.name}` |" in page
        assert all(f"`{name}`" in page for name in row.env)
        assert f"  --{row.name}" in text


def test_all_project_files_state_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == VERSION
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def measurement(path: Path) -> list[tuple[int, float, float]]:
    """Requests at once, time to the first token and between tokens in ms, as an example's head
    tells.
    """
    rows = re.findall(r"(?m)^# +(\d+) \| +([\d.]+) \| +([\d.]+)$", path.read_text("utf-8"))
    return [(int(count), float(first), float(between)) for count, first, between in rows]


def timing_of(path: Path, at_once: int) -> PerRequestTiming:
    settings = load(["--config", str(path)], {})
    slots = settings.scheduling.max_num_seqs
    return PerRequestTiming(settings.latency, slots, lambda: at_once, Random(1))


def test_example_profiles_for_8b_70b_and_small_models_exist() -> None:
    assert {path.stem for path in EXAMPLES} >= {"8b-h100", "70b-2xh100", "small-l4"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_profile_reproduces_the_measurements_that_it_cites(path: Path) -> None:
    """Times between tokens at every load; those to the first token of a request that is alone."""
    text = path.read_text("utf-8")
    assert re.search(r"(?m)^# Source: https://\S+$", text)
    rows = measurement(path)
    assert len(rows) >= 3
    for at_once, _, between_ms in rows:
        timing = timing_of(path, at_once)
        gaps = [timing.inter_token() for _ in range(400)]
        assert 1000 * sum(gaps) / len(gaps) == pytest.approx(between_ms, rel=0.15)
    prompt = (
        int(prompt_tokens[1].replace(",", ""))
        if (prompt_tokens := re.search(r"# ([\d,]+) prompt tokens", text))
        else 100
    )
    alone = timing_of(path, 1)
    first = [alone.time_to_first_token(prompt) for _ in range(400)]
    assert 1000 * sum(first) / len(first) == pytest.approx(rows[0][1], rel=0.05)
    settings = load(["--config", str(path)], {})
    assert settings.scheduling.max_num_seqs == rows[-1][0]
    assert settings.model.max_model_len >= 8192


def test_versions_page_equals_the_generated_list_of_version_differences() -> None:
    expected = versions_page()
    assert VERSIONS_PAGE.read_text("utf-8") == expected, "run: python -m scripts.reference_pages"


def test_access_page_contains_the_list_of_control_routes() -> None:
    text = ACCESS_PAGE.read_text("utf-8")
    assert text == access_page(), "run: python -m scripts.reference_pages"
    for path in ("`/admin`", "`/server_info`", "`/get_load`"):
        assert path in text
