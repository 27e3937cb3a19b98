"""A WSGI application that forwards requests to pods, each to the one that a policy chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any

import msgspec

from app.fleet.indexer import GENERATING, Incoming
from app.fleet.policies import Policy
from app.fleet.relay import Relay
from app.fleet.watch import CLIENT, watched
from app.load.connection import Connection

ROUTED_TO = "x-routed-to"
READ_TIMEOUT_S = 300.0
"""How long a pod may say nothing, at the start of an answer or within it."""
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade")
) | {"transfer-encoding"}
NOT_FORWARDED = HOP_BY_HOP | {"host", "content-length", "expect"}

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]
Choose = Callable[[Incoming, Sequence[str], Mapping[str, int]], str]


class Proxy:
    """Forwards POST /v1/completions and /v1/chat/completions, and GET /v1/models to the least loaded pod.

    GET /health answers for the proxy itself, GET /routing tells what it has done. A pod that cannot be
    connected to is passed over; without any pod the answer has status 502.
    """

    def __init__(self, pods: Sequence[str], policy: Policy) -> None:
        """`pods` are addresses, host:port."""
        self.pods = tuple(pods)
        self.policy = policy
        self.in_flight = Counter(dict.fromkeys(pods, 0))
        self.routed = Counter(dict.fromkeys(pods, 0))
        self.unreachable: Counter[str] = Counter()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """WSGI. The client's socket in `environ` (app.fleet.watch) is what tells that a client has left."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        incoming = Incoming(path, environ["wsgi.input"].read())
        if method == "POST" and path in GENERATING:
            return self._forward(incoming, environ, start_response, self.policy.choose)
        if method == "GET" and path == "/v1/models":
            return self._forward(incoming, environ, start_response, _least_loaded)
        if method == "GET" and path in ("/health", "/routing"):
            return _reply(start_response, "200 OK", self.told())
        return _refuse(start_response, "404 Not Found", f"{method} {path} is not forwarded")

    def told(self) -> dict[str, Any]:
        """What has been done so far, for GET /routing."""
        return {
            "routed": dict(self.routed),
            "in_flight": dict(self.in_flight),
            "unreachable": dict(self.unreachable),
            "fallbacks": self.policy.fallbacks,
        }

    def _forward(
        self, incoming: Incoming, environ: Environ, start_response: StartResponse, choose: Choose
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
        return _refuse(start_response, "502 Bad Gateway", "no pod can be reached")

    def _relayed(
        self,
        pod: str,
        connection: Connection,
        incoming: Incoming,
        environ: Environ,
        start_response: StartResponse,
    ) -> Iterable[bytes]:
        """The pod's answer. It holds its place until it is closed, whatever comes before that."""
        self.routed[pod] += 1
        relay = Relay(connection, watched(environ.get(CLIENT), connection.cut), lambda: self._release(pod))
        try:
            method, body = environ["REQUEST_METHOD"], incoming.body or None
            connection.request(method, _target(environ), body, _request_headers(environ))
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            relay.close()
            return _refuse(start_response, "502 Bad Gateway", f"{pod} gave no answer: {error!r}", pod)
        except BaseException:
            relay.close()
            raise
        start_response(f"{response.status} {response.reason}", _response_headers(response, pod))
        return relay.of(response)

    def _release(self, pod: str) -> None:
        self.in_flight[pod] -= 1


def _least_loaded(incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
    return min(pods, key=in_flight.__getitem__)


def _target(environ: Environ) -> str:
    query = environ.get("QUERY_STRING")
    path: str = environ["PATH_INFO"]
    return f"{path}?{query}" if query else path


def _request_headers(environ: Environ) -> dict[str, str]:
    """The client's headers, as far as they concern the pod."""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") or name == "CONTENT_TYPE"
    }
    return {name: value for name, value in headers.items() if value and name not in NOT_FORWARDED}


def _response_headers(response: HTTPResponse, pod: str) -> list[tuple[str, str]]:
    headers = [(name, value) for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP]
    return [*headers, (ROUTED_TO, pod)]


def _refuse(
    start_response: StartResponse, status: str, message: str, pod: str | None = None
) -> Iterable[bytes]:
    """An error in the form in which vLLM writes them."""
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
