"""The report of a decision in Chromium, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.needs import CHROMIUM
from tests.workbench.study.test_compare import PROFILE, write_truth
from workbench.plan_command import run as plan
from workbench.study.command import run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
OVERLAPS = """() => {
    const boxes = [...document.querySelectorAll(".bar > *, dt, dd, h1, h2, li")];
    return boxes.filter(box => box.scrollWidth > box.clientWidth + 1 && box.clientWidth > 0
        && getComputedStyle(box).display !== "inline").map(box => box.textContent);
}"""
CONTRAST = """() => {
    const light = color => {
        const parts = color.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255);
        const [red, green, blue] = parts.map(part =>
            part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const panel = getComputedStyle(document.querySelector(".panel")).backgroundColor;
    return [...document.querySelectorAll("td, th, li, dt, dd, pre, .muted, .worse, .better")]
        .map(node => {
            const pair = [light(getComputedStyle(node).color), light(panel)].sort((a, b) => b - a);
            return [(pair[0] + 0.05) / (pair[1] + 0.05), node.textContent];
        }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with faster, slower, overloaded and equal fleets."""
    folder = tmp_path_factory.mktemp("report")
    write_truth(folder / "s", (1.0, 1.0, 1.0))
    assert run(["compare", str(folder / "s"), "--profile", PROFILE]) == 0
    path = folder / "report.html"
    changes = ["rate x2", "pods=1", "policy=prefix-aware", "device=h200", "rate x40 pods=1"]
    words = ["--study", str(folder / "s"), "--what-if", *changes, "--html", str(path)]
    assert plan(words) == 0
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_report_opens_without_a_network(
    report: Path, chromium: Browser, scheme: str, width: int
) -> None:
    context = chromium.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        offline=True,
    )
    page = context.new_page()
    requested: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    assert requested == [report.as_uri()]
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(CONTRAST) == []
    assert page.locator("h2").all_text_contents()[:4] == [
        "Mean TTFT",
        "Mean TPOT",
        "Mean E2E",
        "Mean queue",
    ]
    assert page.locator("polyline").count() >= 4
    assert page.locator("#assumed li").count() >= 1
    assert "cannot keep up" in page.locator("table").first.inner_text()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(13, 17, 23)") == (scheme == "dark")
    context.close()
