"""A WSGI application that forwards each request to the pod that a policy chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from http.client import HTTPException
from wsgiref.types import StartResponse, WSGIEnvironment

from app.lab.fleet.routing import GENERATING, Incoming, Policy
from app.serving.http import client as relays
from app.serving.http.client import ROUTED_TO, HttpConnection


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
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        incoming = Incoming(path, environ["wsgi.input"].read())
        if method == "GET" and path in ("/health", "/routing"):
            return relays.reply(start_response, "200 OK", self.statistics())
        generates = method == "POST" and path in GENERATING
        if not generates and (method, path) != ("GET", "/v1/models"):
            return relays.refuse(start_response, "404 Not Found", f"{method} {path} is not forwarded")
        left = list(self.pods)
        while left:
            if generates:
                pod = self.policy.choose(incoming, left, self.in_flight)
            else:
                pod = min(left, key=self.in_flight.__getitem__)
            connection = HttpConnection(pod, relays.READ_TIMEOUT_S)
            try:
                connection.connect()
            except OSError:
                self.unreachable[pod] += 1
                left.remove(pod)
                continue
            return self._forwarded(pod, connection, incoming.body, environ, start_response)
        return relays.refuse(start_response, "502 Bad Gateway", "no pod can be reached")

    def _forwarded(
        self,
        pod: str,
        connection: HttpConnection,
        body: bytes,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> Iterator[bytes]:
        self.routed[pod] += 1
        self.in_flight[pod] += 1
        headers = relays.request_headers(environ)
        try:
            with closing(connection), relays.watching(environ, connection.cut):
                try:
                    connection.request(
                        environ["REQUEST_METHOD"], environ[relays.TARGET], body or None, headers
                    )
                    response = connection.getresponse()
                except (OSError, HTTPException) as error:
                    why = f"{pod} gave no answer: {error!r}"
                    yield from relays.refuse(start_response, "502 Bad Gateway", why, pod)
                    return
                given = [it for it in response.getheaders() if it[0].lower() not in relays.HOP_BY_HOP]
                start_response(f"{response.status} {response.reason}", [*given, (ROUTED_TO, pod)])
                yield from relays.pieces_of(response)
        finally:
            self.in_flight[pod] -= 1

    def statistics(self) -> dict[str, object]:
        return {
            "routed": dict(self.routed),
            "in_flight": dict(self.in_flight),
            "unreachable": dict(self.unreachable),
            "fallbacks": self.policy.fallbacks,
        }
