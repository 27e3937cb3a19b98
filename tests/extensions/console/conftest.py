"""What the tests of the page share: a headless Chromium, and patience."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.needs import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = "MAP evil.example 127.0.0.1, MAP console.example 127.0.0.1"
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium.

    Playwright's event loop runs for as long as it does, and no other can in this thread.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", f"--host-resolver-rules={NAMES}"]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()


def until(holds: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Waits until it holds. AssertionError, with `what`, after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
