"""Samples become figures, and figures become a table, JSON and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from app.fleet.report import Summary, draw, notes, summarize, table
from app.load.client import Sample
from config.installation import missing

SAMPLES = [
    Sample("a", 0.1, 100, 0),
    Sample("a", 0.3, 100, 80),
    Sample("b", 0.2, 200, 120),
    Sample("", 0.0, 0, 0, error="status 502: no pod"),
]


def summary(policy: str = "random", fallbacks: int = 0) -> Summary:
    return summarize(policy, SAMPLES, 2.0, ["a", "b", "c"], fallbacks)


def test_a_summary_counts_what_was_answered() -> None:
    at = summary(fallbacks=3)
    assert (at.requests, at.failed, at.fallbacks) == (4, 1, 3)
    assert at.ttft_mean_s == pytest.approx(0.2) and at.ttft_p50_s == pytest.approx(0.2)
    assert at.ttfts_s == (0.1, 0.2, 0.3)
    assert at.cached_share == 0.5
    assert at.requests_per_s == 1.5
    assert at.per_pod == {"a": 2, "b": 1, "c": 0}


def test_the_table_has_a_row_for_each_policy() -> None:
    lines = table([summary(), summary("round-robin")]).splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1
    cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
    assert cells == ["round-robin", "200 ms", "200 ms", "300 ms", "300 ms", "50%", "1.5", "0-2", "1"]


def test_failures_and_fallbacks_are_told_below_it() -> None:
    assert notes([summary(fallbacks=2)]) == [
        "random: 2 requests were routed without the indexer, which failed",
        "random: 1 requests failed, most of them so: status 502: no pod",
    ]
    assert notes([summarize("random", SAMPLES[:3], 2.0, ["a"], 0)]) == []


def test_when_nothing_was_answered_there_are_no_times() -> None:
    at = summarize("random", SAMPLES[3:], 2.0, ["a"], 0)
    assert "| - |" in table([at]).replace("  ", "")
    told = json.loads(msgspec.json.encode(at))
    assert told["ttft_mean_s"] is None and told["requests_per_s"] == 0
    assert told["errors"] == ["status 502: no pod"]


def test_json_has_every_figure() -> None:
    told = json.loads(msgspec.json.encode(summary()))
    assert told["policy"] == "random" and told["ttfts_s"] == [0.1, 0.2, 0.3]
    assert set(told) == set(Summary.__slots__)


@pytest.mark.skipif(missing("fleet"), reason="matplotlib is optional")
@pytest.mark.parametrize("policies", [["random"], ["random", "round-robin", "prefix-aware"]])
def test_the_picture_is_a_png(policies: list[str], tmp_path: Path) -> None:
    path = tmp_path / "fleet.png"
    draw([summary(policy) for policy in policies], "title", path)
    assert path.read_bytes().startswith(b"\x89PNG")
