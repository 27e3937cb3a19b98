"""HTTP servers in a thread of this process, for tests of what asks them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        """`Content_Type=...` is the header Content-Type."""
        self.send_response(status)
        for name, value in ({"Content_Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Has room for clients that connect faster than its thread of this process accepts them."""

    request_queue_size = 128
    daemon_threads = True


@contextmanager
def serving(handler: type[Handler]) -> Iterator[int]:
    """The port of a server for as long as the block lasts."""
    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
