"""An HTTP server with one file, which can be told to misbehave."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.http_server import Handler, serving


@dataclass
class Shop:
    content: bytes = b""
    url: str = ""
    etag: str | None = '"first"'
    ranges: bool = True
    """Whether parts of the file can be had."""
    statuses: list[int] = field(default_factory=list)
    """Statuses to answer with, one a request, before the file is served."""
    cuts: list[int] = field(default_factory=list)
    """Bytes of a body after which the connection breaks, one a request, before all of it is sent.
    """
    wrong_start: int = 0
    """How far beside the wanted part a part begins."""
    requests: list[dict[str, str]] = field(default_factory=list)
    """Headers of each request, with names in small letters."""

    def part(self, headers: dict[str, str]) -> tuple[int, int]:
        """Status and first byte."""
        if self.statuses:
            return self.statuses.pop(0), 0
        wanted = headers.get("range")
        current = headers.get("if-range") in (None, self.etag)
        if wanted is None or not self.ranges or not current:
            return 200, 0
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        return (206, start + self.wrong_start) if start < len(self.content) else (416, 0)


class ShopHandler(Handler):
    shop: Shop

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.shop.requests.append(headers)
        status, start = self.shop.part(headers)
        body = self.shop.content[start:] if status in (200, 206) else b"no"
        self.send_response(status)
        for name, value in self.described(status, start, body):
            self.send_header(name, value)
        self.end_headers()
        if status in (200, 206) and self.shop.cuts:
            body = body[: self.shop.cuts.pop(0)]
        self.wfile.write(body)

    def described(self, status: int, start: int, body: bytes) -> Iterator[tuple[str, str]]:
        size = len(self.shop.content)
        yield "Content-Length", str(len(body))
        if status == 206:
            yield "Content-Range", f"bytes {start}-{size - 1}/{size}"
        if status == 416:
            yield "Content-Range", f"bytes */{size}"
        if status == 302:
            yield "Location", self.shop.url + "/elsewhere"
        if self.shop.etag is not None:
            yield "ETag", self.shop.etag


@contextmanager
def open_shop(content: bytes) -> Iterator[Shop]:
    """A server on a free port for as long as the block lasts."""
    shop = Shop(content)
    with serving(type("Handler", (ShopHandler,), {"shop": shop})) as port:
        shop.url = f"http://127.0.0.1:{port}/replies.sqlite3"
        yield shop
