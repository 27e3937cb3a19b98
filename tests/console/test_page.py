"""What the page is made of: small, from nowhere else, and without markup made of texts."""

from __future__ import annotations

import re

import pytest

from app.console import page
from app.console.page import FOLDER, SCRIPTS, STYLES
from tests.application import application

OURS = [name for name in SCRIPTS if not name.startswith("vendor/")]
MOST_BYTES = 150_000


def test_all_of_it_is_small() -> None:
    assert sum((FOLDER / name).stat().st_size for name in ("index.html", *STYLES, *SCRIPTS)) < MOST_BYTES


def test_it_asks_for_its_own_files_only() -> None:
    html = (FOLDER / "index.html").read_text("utf-8")
    named = re.findall(r'(?:src|href)="([^"#][^"]*)"', html)
    assert set(named) == {f"console/{name.rpartition('/')[2]}" for name in (*STYLES, *SCRIPTS)} | {"data:,"}
    for name in ("index.html", *OURS, "console.css"):
        text = (FOLDER / name).read_text("utf-8")
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text), name


def test_nothing_of_it_stands_within_the_page() -> None:
    html = (FOLDER / "index.html").read_text("utf-8")
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", html)


@pytest.mark.parametrize("name", OURS)
def test_texts_become_texts(name: str) -> None:
    script = (FOLDER / name).read_text("utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function", script)
    assert script.startswith('"use strict";')


@pytest.mark.parametrize("path", ["/console", "/console/main.js", "/console/console.css"])
def test_a_policy_forbids_everything_from_elsewhere(path: str) -> None:
    answer = application(page.routes()).test_client().get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert answer.status_code == 200
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy


def test_a_browser_that_has_a_file_is_told_so() -> None:
    asked = application(page.routes()).test_client()
    tag = asked.get("/console/main.js").headers["ETag"]
    assert asked.get("/console/main.js", headers={"If-None-Match": tag}).status_code == 304


@pytest.mark.parametrize("name", ["other.js", "index.htm", "uPlot.LICENSE", "..%2Fpage.py"])
def test_other_files_are_not_served(name: str) -> None:
    assert application(page.routes()).test_client().get(f"/console/{name}").status_code == 404


def test_the_library_has_its_licence() -> None:
    assert "MIT" in (FOLDER / "vendor" / "uPlot.LICENSE").read_text("utf-8")
