"""The console in a real Chromium: `ConsolePage` opens it and acts; the functions wait and send."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.extensions.console.conftest import PATIENCE_S, until
from tests.running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Error, Page, Request

KEY = {"X-Admin-Key": "secret"}
LIMIT_S = 20


def wait_for_js(
    page: Page, expression: str, complaint: str, patience_s: float = PATIENCE_S
) -> None:
    """Waits until an expression is true in the page."""
    until(partial(page.evaluate, expression), complaint, patience_s)


def wait_for_text(page: Page, selector: str, *texts: str) -> None:
    """Waits until an element contains each of the texts."""

    def contains_texts() -> bool:
        shown_text = page.inner_text(selector)
        return all(text in shown_text for text in texts)

    until(contains_texts, f"{selector} does not show {texts}")


def wait_for_change(page: Page, selector: str, old_text: str) -> None:
    """Waits until an element no longer contains a text."""

    def has_changed() -> bool:
        return old_text not in page.inner_text(selector)

    until(has_changed, f"{selector} still shows {old_text!r}")


def wait_for_match(page: Page, selector: str, pattern: str) -> None:
    """Waits until a regular expression matches in the text of an element."""

    def matches() -> bool:
        return re.search(pattern, page.inner_text(selector)) is not None

    until(matches, f"{selector} does not match {pattern!r}")


def wait_for_texts(page: Page, selector: str, texts: Sequence[str]) -> None:
    """Waits until the matching elements have these texts, in this order."""

    def have_texts() -> bool:
        return page.locator(selector).all_inner_texts() == list(texts)

    until(have_texts, f"{selector} does not show {texts}")


def wait_for_count(page: Page, selector: str, count: int) -> None:
    """Waits until this many elements match."""

    def is_count_reached() -> bool:
        return page.locator(selector).count() == count

    until(is_count_reached, f"not {count} elements match {selector}")


def wait_for_state(page: Page, state: str) -> None:
    """Waits until the console shows this state of the server."""

    def is_state_shown() -> bool:
        return page.inner_text("#state") == state

    until(is_state_shown, f"the state is not {state}")


def wait_for_setting(server: RunningServer, name: str, value: object) -> None:
    """Waits until a setting of the server has this value."""

    def is_set() -> bool:
        return bool(settings(server)[name] == value)

    until(is_set, f"{name} is not {value}")


def wait_until_idle(server: RunningServer) -> None:
    """Waits until the server has no running and no waiting requests."""

    def is_idle() -> bool:
        return not metric(server, "num_requests_running") + metric(server, "num_requests_waiting")

    until(is_idle, "requests do not end")


def record_messages(page: Page, messages: list[str]) -> None:
    """Appends each line of the browser's console and each error of a script."""

    def on_console(message: ConsoleMessage) -> None:
        messages.append(message.text)

    def on_error(error: Error) -> None:
        messages.append(str(error))

    page.on("console", on_console)
    page.on("pageerror", on_error)


def violations(page: Page) -> list[Any]:
    """The rules of accessibility that the page violates, with the elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    rules = axe.run(page).response["violations"]
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in rules]


def metric(server: RunningServer, name: str) -> float:
    """The sum of a metric over all of its labels."""
    lines = requests.get(f"{server.url}/metrics", timeout=LIMIT_S).text.splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{")
    )


def complete(server: RunningServer, **fields: Any) -> dict[str, Any]:
    """Sends a completion request, and returns the body of the answer."""
    body = {"prompt": "Hello there", "ignore_eos": True, **fields}
    answer = requests.post(f"{server.url}/v1/completions", json=body, timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text
    completion: dict[str, Any] = answer.json()
    return completion


def settings(server: RunningServer) -> dict[str, Any]:
    """The current settings of the server."""
    values: dict[str, Any] = requests.get(
        f"{server.url}/admin/config", headers=KEY, timeout=LIMIT_S
    ).json()
    return values


def load(server: RunningServer, **plan: Any) -> None:
    """Starts the load generator."""
    answer = requests.post(
        f"{server.url}/admin/console/load", json=plan, headers=KEY, timeout=LIMIT_S
    )
    assert answer.status_code == 200, answer.text


class ConsolePage:
    """A page with the console of a server."""

    def __init__(self, page: Page, server: RunningServer) -> None:
        self.page = page
        self.server = server
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        """Hosts and ports of all requests."""
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} {message.location['url']}")

    def _on_error(self, error: Error) -> None:
        self.complaints.append(str(error))

    def _on_request(self, request: Request) -> None:
        self.hosts.add(request.url.split("/")[2])

    def open(self, key: str = "secret") -> None:
        """Opens the console with an admin key, and waits for its first picture."""
        self.page.add_init_script(f"sessionStorage.setItem('key', '{key}')")
        self.page.goto(f"{self.server.url}/console")
        wait_for_state(self.page, "serving")

    def close(self) -> None:
        """Closes the page. Errors and warnings of its scripts fail the test."""
        self.page.context.close()
        assert self.complaints == []

    def ignore_status(self, status: str) -> None:
        """Removes the expected error of a response from the complaints."""
        self.complaints = [line for line in self.complaints if status not in line]

    def press(self, button: str) -> None:
        """Clicks a button."""
        self.page.get_by_role("button", name=button).click()

    def wait_for_state(self, state: str) -> None:
        """Waits until the console shows this state of the server."""
        wait_for_state(self.page, state)

    def wait_for_text(self, text: str, selector: str = "#tab-body") -> None:
        """Waits until an element, by default the open tab, contains a text."""
        wait_for_text(self.page, selector, text)

    def wait_for(self, expression: str, complaint: str, patience_s: float = PATIENCE_S) -> None:
        """Waits until an expression is true in the page."""
        wait_for_js(self.page, expression, complaint, patience_s)

    def tile(self, name: str) -> str:
        """The large number of a tile."""
        return str(self.page.locator(".tile", has_text=name).locator("strong").inner_text())

    def tab(self, name: str) -> None:
        """Opens a tab."""
        self.page.click(f"#tab-{name}")

    def show(self, request_id: str) -> None:
        """Opens the details of a request that has ended, as soon as the page knows it."""
        bar = f"[...model.bars.values()].find(bar => bar.end !== null && bar.id.startsWith('{request_id}'))"
        self.wait_for(f"{bar} !== undefined", f"{request_id} has not ended")
        self.page.evaluate(f"views.detail.show({bar}.number, model)")

    def model(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return self.page.evaluate(expression)
