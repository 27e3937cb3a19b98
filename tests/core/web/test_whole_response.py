"""Commands read the responses of servers within a limit of size and of total time."""

import pytest

from app.shared.http_client import exchange
from config.files import MAX_FILE_VARIABLE
from tests.evil_server import KINDS, TIMEOUTS_S, evil_server
from tests.http_server import Handler, serving

REASONS = {
    "endless": "the response is larger than 1 MiB",
    "drip": r"no whole response within 0\.5 s",
    "cut": "999988 bytes of the response are missing",
    "not-http": "the response is not valid HTTP",
}


@pytest.mark.parametrize("kind", KINDS)
def test_response_without_an_end_is_an_error_in_one_line(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_FILE_VARIABLE, "1")
    with evil_server(kind) as url, pytest.raises(OSError, match=REASONS[kind]) as caught:
        exchange(url.removeprefix("http://"), "GET", "/", timeout_s=TIMEOUTS_S[kind])
    assert "\n" not in str(caught.value)


def test_response_of_the_largest_size_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_FILE_VARIABLE, "1")
    body = b"x" * (1 << 20)

    class Large(Handler):
        def do_GET(self) -> None:
            self.reply(200, body)

    with serving(Large) as port:
        assert exchange(f"127.0.0.1:{port}", "GET", "/", timeout_s=30.0) == (200, body)
