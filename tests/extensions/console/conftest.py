"""Fixtures for tests of the page: a headless Chromium, and a wait for a condition."""

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


def until(
    is_fulfilled: Callable[[], object], complaint: str, patience_s: float = PATIENCE_S
) -> None:
    """Waits until a condition is fulfilled.

    Raises:
        AssertionError: with `complaint`, after `patience_s` seconds.
    """
    deadline = time.monotonic() + patience_s
    while not is_fulfilled():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)
