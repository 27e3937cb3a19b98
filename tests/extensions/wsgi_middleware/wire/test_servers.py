"""Middleware of users runs for every request to a real server, whatever its way."""

import subprocess
import sys

import pytest
import requests

from tests.client import Client
from tests.extensions.wsgi_middleware.test_loading import EXAMPLES
from tests.running_server import ROOT, free_port, running_image

pytestmark = pytest.mark.wire


def test_wsgi_middleware_can_add_headers_and_reject_a_request() -> None:
    with (
        running_image("serve", "tiny", f"--middleware={EXAMPLES}.Tagged") as server,
        requests.Session() as session,
    ):
        client = Client(session, server.url, server)
        for stream in (False, True):
            answer = client.post(
                "/v1/completions",
                {"model": "tiny", "prompt": "Hello", "max_tokens": 3, "stream": stream},
            )
            assert answer.status_code == 200 and answer.headers["x-tag"] == "class0"
        refused = client.post("/v1/completions", {"prompt": "a"}, headers={"X-Refuse": "1"})
        assert (refused.status_code, refused.text) == (403, "refused")


def test_unimportable_middleware_prevents_startup_with_a_one_line_error() -> None:
    options = ["--port", str(free_port()), "--middleware", "no_such_module.Class"]
    done = subprocess.run(
        [sys.executable, "-m", "app", "serve", "Qwen/Qwen3-0.6B", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "setting middleware: cannot import no_such_module.Class" in done.stderr
