"""In a real Chromium: a page of somebody else steers nothing; the console works, by a proxy's name,
too.

What a browser sends by itself (Origin, Sec-Fetch-Site, Host, content types) is what this is about.
The rules for it are tested in tests/core/middleware/test_foreign_pages.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import requests

from tests.http_server import Handler, serving
from tests.running_server import RunningServer, running_gunicorn

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
ATTACK = """async (server) => {
    const post = (path, body, type) => fetch(server + path, {
        method: "POST", mode: "no-cors", body: type ? new Blob([body], {type}) : body,
    }).then(() => true, () => false);
    return Promise.all([
        post("/pause?mode=keep"), post("/admin/console/pause?mode=keep"), post("/sleep?mode=keep"),
        post("/admin/config", '{"api-key": ["stolen"], "time-to-first-token": "1h"}'),
        post("/admin/config", '{"api-key": ["stolen"]}', "application/x-www-form-urlencoded"),
        post("/fake_metrics", '{"running-requests": 7}'), post("/admin/drain"),
    ]);
}"""
FORM = """(url) => {
    const form = document.createElement("form"), field = document.createElement("input");
    Object.assign(form, {method: "POST", action: url, enctype: "text/plain"});
    Object.assign(field, {name: '{"api-key": ["stolen"], "x', value: '": 1}'});
    form.append(field); document.body.append(form); form.submit();
}"""


class Page(Handler):
    def do_GET(self) -> None:
        self.reply(200, b"<!doctype html><title>kittens</title><body>", Content_Type="text/html")


@pytest.fixture(scope="module", params=["127.0.0.1", "0.0.0.0"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A server on a loopback address, and one on every address, as by default."""
    env = {
        "SIM_HOST": request.param,
        "SIM_CONSOLE": "true",
        "SIM_SERVER_DEV_MODE": "true",
        "SIM_ALLOWED_HOSTS": "console.example",
    }
    with running_gunicorn(env=env) as running:
        yield running


def refused(server: RunningServer) -> float:
    """Requests that were answered with 403, as the server counts them."""
    lines = requests.get(f"{server.url}/metrics", timeout=20).text.splitlines()
    ours = [line for line in lines if line.startswith("http_requests_total{") and '"4xx"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in ours)


def assert_untouched(server: RunningServer) -> None:
    settings = requests.get(f"{server.url}/admin/config", timeout=20).json()
    assert (settings["api-key"], settings["time-to-first-token"]) == ([], "0s")
    assert requests.get(f"{server.url}/is_paused", timeout=20).json() == {"is_paused": False}
    assert requests.get(f"{server.url}/health/ready", timeout=20).status_code == 200


@pytest.mark.parametrize("name", ["evil.example", "localhost"])
def test_page_of_another_origin_cannot_change_the_server(
    browser: Browser, server: RunningServer, name: str
) -> None:
    """Also not one of another server on this machine, which is another origin of the same site."""
    refused_before = refused(server)
    with serving(Page) as port:
        page = browser.new_page()
        page.goto(f"http://{name}:{port}/")
        assert page.evaluate(ATTACK, server.url) == [True] * 7, "all of them came to the server"
        assert refused(server) == refused_before + 7
        with page.expect_navigation():
            page.evaluate(FORM, f"{server.url}/admin/config")
        assert "other origins" in page.inner_text("body")
        page.close()
    assert_untouched(server)


def test_rebound_host_name_is_rejected(browser: Browser, server: RunningServer) -> None:
    """DNS rebinding: for the browser, page and server are of one origin then."""
    page = browser.new_page()
    home = f"http://evil.example:{server.port}"
    assert (page.goto(f"{home}/v1/models") or pytest.fail()).status == 200
    assert page.evaluate(ATTACK, home) == [True] * 7
    for path in ("/admin/config", "/admin/journal", "/console", "/server_info"):
        assert page.evaluate("path => fetch(path).then(answer => answer.status)", path) == 403
    rules = (
        "fetch('/admin/script/rules', {method: 'PUT', body: "
        "new Blob(['{}'], {type: 'application/json'})})"
    )
    assert page.evaluate(f"{rules}.then(answer => answer.status)") == 403
    page.close()
    assert_untouched(server)
