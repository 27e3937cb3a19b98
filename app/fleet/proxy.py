"""A WSGI application that forwards each request to the pod that a policy chooses."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import gevent
import msgspec
from gevent.pywsgi import WSGIHandler, WSGIServer
from gevent.socket import wait_read

from app.fleet.processes import HOST
from app.fleet.routing import GENERATING, Incoming, Policy
from app.load.client import ROUTED_TO, Connection

READ_TIMEOUT_S = 300.0
"""Longest pause of a pod in seconds, before a response or within it."""
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade")
) | {"transfer-encoding"}
NOT_FORWARDED = HOP_BY_HOP | {"host", "content-length", "expect"}

Choose = Callable[[Incoming, Sequence[str], Mapping[str, int]], str]
PIECE = 65536
"""Most bytes of one read; smaller pieces are forwarded at once."""
CLIENT = "fleet.client_socket"
"""Key of the client's socket in the WSGI environ."""


class Proxy:
    """Forwards POST /v1/completions and /v1/chat/completions, and GET /v1/models to the least loaded pod.

    GET /health and GET /routing return the counters of the proxy. Pods that refuse a connection are skipped;
    without a reachable pod the response has status 502.
    """

    def __init__(self, pods: Sequence[str], policy: Policy) -> None:
        """`pods` are addresses, host:port."""
        self.pods = tuple(pods)
        self.policy = policy
        self.in_flight = Counter(dict.fromkeys(pods, 0))
        self.routed = Counter(dict.fromkeys(pods, 0))
        self.unreachable: Counter[str] = Counter()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Handles a WSGI request. The client's socket in `environ` shows that a client has disconnected."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        incoming = Incoming(path, environ["wsgi.input"].read())
        if method == "POST" and path in GENERATING:
            return self._forward(incoming, environ, start_response, self.policy.choose)
        if method == "GET" and path == "/v1/models":
            return self._forward(incoming, environ, start_response, _least_loaded)
        if method == "GET" and path in ("/health", "/routing"):
            return _reply(start_response, "200 OK", self.statistics())
        return refuse(start_response, "404 Not Found", f"{method} {path} is not forwarded")

    def statistics(self) -> dict[str, object]:
        return {
            "routed": dict(self.routed),
            "in_flight": dict(self.in_flight),
            "unreachable": dict(self.unreachable),
            "fallbacks": self.policy.fallbacks,
        }

    def _forward(
        self, incoming: Incoming, environ: WSGIEnvironment, start_response: StartResponse, choose: Choose
    ) -> Iterable[bytes]:
        left = list(self.pods)
        while left:
            pod = choose(incoming, left, self.in_flight)
            connection = Connection(pod, READ_TIMEOUT_S)
            self.in_flight[pod] += 1
            try:
                connection.connect()
            except OSError:
                self.in_flight[pod] -= 1
                self.unreachable[pod] += 1
                left.remove(pod)
                continue
            return self._relayed(pod, connection, incoming, environ, start_response)
        return refuse(start_response, "502 Bad Gateway", "no pod can be reached")

    def _relayed(
        self,
        pod: str,
        connection: Connection,
        incoming: Incoming,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> Iterable[bytes]:
        """Returns the pod's response, which counts as in flight until it is closed."""
        self.routed[pod] += 1
        relay = Relay(connection, watched(environ.get(CLIENT), connection.cut), lambda: self._release(pod))
        try:
            method, body = environ["REQUEST_METHOD"], incoming.body or None
            connection.request(method, _target(environ), body, request_headers(environ))
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            relay.close()
            return refuse(start_response, "502 Bad Gateway", f"{pod} gave no answer: {error!r}", pod)
        except BaseException:
            relay.close()
            raise
        start_response(f"{response.status} {response.reason}", _response_headers(response, pod))
        return relay.of(response)

    def _release(self, pod: str) -> None:
        self.in_flight[pod] -= 1


class Relay:
    """WSGI body of a response. Owns the connection to the pod; `close` may be called at any time."""

    def __init__(self, connection: Connection, unwatch: Callable[[], None], done: Callable[[], None]) -> None:
        """`done` is called once, on close."""
        self._connection = connection
        self._unwatch = unwatch
        self._done = done
        self._over = False
        self._response: HTTPResponse | None = None

    def of(self, response: HTTPResponse) -> Relay:
        self._response = response
        return self

    def __iter__(self) -> Iterator[bytes]:
        """Yields the body. Raises ConnectionResetError when it breaks off, to break off the client's, too."""
        response = self._response
        assert response is not None
        try:
            while piece := response.read1(PIECE):
                yield piece
        except (OSError, HTTPException, ValueError) as error:
            raise _broken(repr(error)) from error
        if response.length:
            raise _broken(f"{response.length} bytes are missing")

    def close(self) -> None:
        """Closes the connection, upon which the pod aborts the request."""
        if self._over:
            return
        self._over = True
        self._unwatch()
        self._connection.close()
        if self._response is not None:
            self._response.close()
        self._done()


def _broken(why: str) -> ConnectionResetError:
    # For this errno the server closes the connection without a log entry and without the body's end.
    return ConnectionResetError(errno.ECONNRESET, f"the pod's answer broke off: {why}")


class ClientHandler(WSGIHandler):  # type: ignore[misc]
    """Handler of gevent that also passes the client's socket to the application."""

    def get_environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = super().get_environ()
        # A token must not wait for the acknowledgement of the previous one.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        environ[CLIENT] = self.socket
        return environ


def server_of(application: WSGIApplication, port: int = 0) -> WSGIServer:
    """Returns a loopback server, not yet started and without a log; port 0 is any free port."""
    return WSGIServer((HOST, port), application, handler_class=ClientHandler, log=None, error_log=None)


def watched(client: socket.socket | None, left: Callable[[], None]) -> Callable[[], None]:
    """Calls `left` when the client closes its side, also while no data can be sent to the client.

    Returns a function that ends the watch.
    """
    if client is None:
        return lambda: None
    greenlet = gevent.spawn(_watch, client, left)
    return lambda: greenlet.kill(block=False)


def _watch(client: socket.socket, left: Callable[[], None]) -> None:
    with suppress(OSError):
        wait_read(client.fileno())
        # Bytes after the request begin the next one: the client is still connected.
        if client.recv(1, socket.MSG_PEEK):
            return
    left()


def _least_loaded(incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
    return min(pods, key=in_flight.__getitem__)


def _target(environ: WSGIEnvironment) -> str:
    query = environ.get("QUERY_STRING")
    path: str = environ["PATH_INFO"]
    return f"{path}?{query}" if query else path


def request_headers(environ: WSGIEnvironment) -> dict[str, str]:
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") or name == "CONTENT_TYPE"
    }
    return {name: value for name, value in headers.items() if value and name not in NOT_FORWARDED}


def _response_headers(response: HTTPResponse, pod: str) -> list[tuple[str, str]]:
    headers = [(name, value) for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP]
    return [*headers, (ROUTED_TO, pod)]


def refuse(
    start_response: StartResponse, status: str, message: str, pod: str | None = None
) -> Iterable[bytes]:
    """Returns an error response in the format of vLLM."""
    code, _, kind = status.partition(" ")
    body = {"error": {"message": message, "type": kind, "param": None, "code": int(code)}}
    return _reply(start_response, status, body, [(ROUTED_TO, pod)] if pod else [])


def _reply(
    start_response: StartResponse, status: str, body: object, headers: Sequence[tuple[str, str]] = ()
) -> Iterable[bytes]:
    text = msgspec.json.encode(body)
    sizes = [("Content-Type", "application/json"), ("Content-Length", str(len(text)))]
    start_response(status, [*sizes, *headers])
    return [text]
