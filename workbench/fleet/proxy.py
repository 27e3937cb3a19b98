"""The proxy of a fleet, which routes requests by a policy."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from wsgiref.types import StartResponse, WSGIEnvironment

from app.extensions.plugins.policies import Incoming, Policy
from app.shared import relay
from app.shared.http_client import COMPLETIONS, ROUTED_TO, HttpConnection
from workbench.fleet.indexer import CHAT

ROUTED_PATHS = frozenset({COMPLETIONS, CHAT})
"""Paths routed by the policy."""


class Proxy:
    """Routes requests to pods that can be reached, as a WSGI application.

    Forwards POST /v1/completions and /v1/chat/completions by the policy, and GET /v1/models to the
    least loaded pod. GET /health and GET /routing return the counters of the proxy. Pods that
    refuse a connection are skipped; without a reachable pod the response has status 502.
    """

    def __init__(self, pods: Sequence[str], policy: Policy) -> None:
        """`pods` are addresses, host:port."""
        self.pods = tuple(pods)
        self.policy = policy
        self.in_flight = Counter(dict.fromkeys(pods, 0))
        self.routed = Counter(dict.fromkeys(pods, 0))
        self.unreachable: Counter[str] = Counter()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers a request."""
        method = environ["REQUEST_METHOD"]
        path = environ["PATH_INFO"]
        incoming = Incoming(path, environ["wsgi.input"].read())
        if method == "GET" and path in ("/health", "/routing"):
            return relay.reply(start_response, "200 OK", self.statistics())
        is_routed = method == "POST" and path in ROUTED_PATHS
        if not is_routed and (method, path) != ("GET", "/v1/models"):
            return relay.refuse(
                start_response, "404 Not Found", f"{method} {path} is not forwarded"
            )
        candidates = list(self.pods)
        while candidates:
            if is_routed:
                pod = self.policy.choose(incoming, candidates, self.in_flight)
            else:
                pod = min(candidates, key=self.in_flight.__getitem__)
            connection = HttpConnection(pod, relay.READ_TIMEOUT_S)
            try:
                connection.connect()
            except OSError:
                self.unreachable[pod] += 1
                candidates.remove(pod)
                continue
            return self._forward(
                pod, connection, incoming.body, environ=environ, start_response=start_response
            )
        return relay.refuse(start_response, "502 Bad Gateway", "no pod can be reached")

    def _forward(
        self,
        pod: str,
        connection: HttpConnection,
        body: bytes,
        *,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> Iterator[bytes]:
        self.routed[pod] += 1
        self.in_flight[pod] += 1
        request_headers = relay.request_headers(environ)
        try:
            with closing(connection), relay.watching(environ[relay.CLIENT], connection.cut):
                try:
                    connection.request(
                        environ["REQUEST_METHOD"],
                        environ[relay.TARGET],
                        body or None,
                        request_headers,
                    )
                    response = connection.getresponse()
                except OSError as error:
                    reason = f"{pod} gave no answer: {error!r}"
                    yield from relay.refuse(start_response, "502 Bad Gateway", reason, pod)
                    return
                headers = [
                    (name, value)
                    for name, value in response.headers.items()
                    if name.lower() not in relay.HOP_BY_HOP
                ]
                start_response(f"{response.status} {response.reason}", [*headers, (ROUTED_TO, pod)])
                yield from relay.relayed(response)
        finally:
            self.in_flight[pod] -= 1

    def statistics(self) -> dict[str, object]:
        """Returns the counters of the proxy."""
        return {
            "routed": dict(self.routed),
            "in_flight": dict(self.in_flight),
            "unreachable": dict(self.unreachable),
            "fallbacks": self.policy.fallbacks,
        }
