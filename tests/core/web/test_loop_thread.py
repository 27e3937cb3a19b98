"""The loop that serves requests of many native threads."""

import gc
import io
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import gevent
import pytest
from werkzeug.serving import make_server
from werkzeug.test import Client, TestResponse

from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, get, post
from tests.application import application

PATIENCE_S = 20.0
THREADED = {"wsgi.multithread": True}


class Begun:
    def __init__(self) -> None:
        self.threads: list[int] = []

    def start(self) -> None:
        self.threads.append(threading.get_ident())

    def close(self) -> None:
        """Nothing is open."""


def served(*routes: Route) -> Client:
    """A client whose requests come as those of a server with threads."""
    return Client(application(routes))


def ident(context: RequestContext) -> Response:
    gevent.sleep(0.01)
    return json_response(threading.get_ident())


def test_requests_of_all_threads_are_served_by_one_loop_thread() -> None:
    app = application([get("/", ident)])
    service = Begun()
    app.services.append(service)
    assert service.threads == []
    together = threading.Barrier(8)

    def served_thread(_: int) -> Any:
        together.wait(PATIENCE_S)
        return Client(app).get("/", environ_overrides=THREADED).json

    with ThreadPoolExecutor(8) as several:
        served_in = set(several.map(served_thread, range(8)))
    assert [*served_in] == service.threads
    assert threading.get_ident() not in served_in


@pytest.mark.usefixtures("few_objects_to_collect")
def test_request_leaves_no_cyclic_garbage() -> None:
    class Mark:
        """What a context keeps."""

    marks: list[weakref.ref[Mark]] = []

    def pieces(context: RequestContext) -> Response:
        mark = Mark()
        marks.append(weakref.ref(mark))
        context.keep(mark)
        return Response(iter([b"1", b"2"]), 200)

    gc.collect()
    gc.disable()
    try:
        client = served(get("/", pieces))
        for _ in range(5):
            assert client.get("/", environ_overrides=THREADED).data == b"12"
        assert [mark_ref() for mark_ref in marks[:-1]] == [None] * 4
    finally:
        gc.enable()


class SlowInput(io.RawIOBase):
    """A body that is there when `arrived` is set."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.is_asked = threading.Event()
        self.reader_threads: list[int] = []

    def read(self, size: int = -1) -> bytes:
        self.reader_threads.append(threading.get_ident())
        self.is_asked.set()
        assert self.arrived.wait(PATIENCE_S)
        return b"late"[:size]


def length(timeout_s: float) -> Route:
    """Tells how long the body is that came within this time."""
    limits = BodyLimits(1 << 20, timeout_s)

    def body_length(context: RequestContext) -> Response:
        return json_response(len(limits.read(context)))

    return post("/", body_length)


def test_request_body_is_read_in_the_thread_of_its_request() -> None:
    client = served(length(PATIENCE_S), get("/", ident))
    slow = SlowInput()
    overrides = {**THREADED, "wsgi.input": slow, "CONTENT_LENGTH": "4"}

    def upload() -> tuple[int, TestResponse]:
        return threading.get_ident(), client.post("/", environ_overrides=overrides)

    with ThreadPoolExecutor(1) as other:
        answer = other.submit(upload)
        assert slow.is_asked.wait(PATIENCE_S)
        assert client.get("/", environ_overrides=THREADED).status_code == 200
        slow.arrived.set()
        thread, response = answer.result(PATIENCE_S)
    assert (response.status_code, response.json) == (200, 4)
    assert slow.reader_threads == [thread]


def test_body_timeout_returns_408_and_leaves_the_socket_writable() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as source:
        theirs.send(b"the first half")
        overrides = {
            **THREADED,
            "wsgi.input": source,
            "gunicorn.socket": ours,
            "CONTENT_LENGTH": "1000",
        }
        answer = served(length(0.05)).post("/", environ_overrides=overrides)
        assert answer.status_code == 408
        ours.sendall(b"can still be written to")


def test_flask_development_server_serves_requests() -> None:
    """`flask run`:

    its input has no end of its own, so no more than the declared length may be read.
    """

    def echo(context: RequestContext) -> Response:
        return Response([b"<", BodyLimits(100, PATIENCE_S).read(context), b">"])

    server = make_server("127.0.0.1", 0, application([post("/", echo)]), threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for body in (b"abc", b""):
            with closing(
                HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
            ) as connection:
                connection.request("POST", "/", body)
                assert connection.getresponse().read() == b"<%b>" % body
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
