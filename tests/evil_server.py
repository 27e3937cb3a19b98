"""A server whose answers have no end, come byte by byte, or are wrong: for tests of what reads."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.http_server import Handler, serving

TIMEOUTS_S = {"endless": 30.0, "drip": 0.5, "cut": 30.0, "not-http": 30.0}
"""Kinds of answers, with the total time that a test lets a client wait for one."""
KINDS = tuple(TIMEOUTS_S)


@contextmanager
def evil_server(kind: str) -> Iterator[str]:
    """The URL of a server with answers of one kind for as long as the block lasts."""
    running = [True]

    class Evil(Handler):
        def answer(self) -> None:
            with suppress(OSError):
                if kind == "not-http":
                    self.wfile.write(b"nonsense\r\n\r\n")
                    return
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                if kind == "cut":
                    self.send_header("Content-Length", "1000000")
                self.end_headers()
                self.wfile.write(b'{"entries":[')
                while running and kind == "endless":
                    self.wfile.write(b'{"a":1},' * 8000)
                while running and kind == "drip":
                    self.wfile.write(b" ")
                    time.sleep(0.05)

        do_GET = do_POST = answer

    with serving(Evil) as port:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            running.clear()
