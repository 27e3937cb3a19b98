"""Routing of a fleet:

scores of prompts by the indexer, policies, and the proxy that applies one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from http.client import HTTPException
from random import Random
from typing import Protocol
from wsgiref.types import StartResponse, WSGIEnvironment

import msgspec
from msgspec import Struct

from app.lab.load.policies import (
    POLICIES,
    PREFIX_AWARE,
    RANDOM,
    ROUND_ROBIN,
    IndexerError,
    make_policy,
)
from app.serving.http import relay as relays
from app.serving.http.client import COMPLETIONS, ROUTED_TO, HttpConnection, exchange
from config import UsageError

CHAT = "/v1/chat/completions"
GENERATING = frozenset({COMPLETIONS, CHAT})
"""Paths routed by the policy."""
OF_TOKENS = ("model", "cache_salt")
OF_TEXT = (*OF_TOKENS, "add_special_tokens")
OF_CHAT = (*OF_TEXT, "messages", "tools", "documents") + (
    *("chat_template", "chat_template_kwargs", "continue_final_message"),
)
"""Request fields that determine the prompt's tokens and the keys of its blocks."""
COMPARED = (RANDOM, ROUND_ROBIN, PREFIX_AWARE)
"""Default policies, before any of plugins."""


class Incoming(Struct, frozen=True):
    path: str
    body: bytes


class _PodScore(Struct):
    score: float


class _TokenScores(Struct):
    scores: dict[str, _PodScore] | None = None


class Indexer:
    """Client of an indexer. `timeout_s` limits how long routing waits for scores."""

    def __init__(self, address: str, timeout_s: float = 2.0) -> None:
        self.address = address
        self._timeout_s = timeout_s

    def scores(self, incoming: Incoming) -> Mapping[str, float]:
        """Returns the cached blocks of the prompt, if any, by pod.

        Raises IndexerError without an answer.
        """
        question = _question(incoming)
        if question is None:
            return {}
        path, body = question
        try:
            status, answer = exchange(
                self.address, "POST", path, msgspec.json.encode(body), self._timeout_s
            )
        except OSError as error:
            raise IndexerError(f"{path} was not answered: {error}") from error
        if status != 200:
            raise IndexerError(f"{path} was answered with status {status}")
        try:
            if path == "/score_tokens":
                by_pod = msgspec.json.decode(answer, type=_TokenScores).scores or {}
                return {pod: found.score for pod, found in by_pod.items()}
            return msgspec.json.decode(answer, type=dict[str, float] | None) or {}
        except msgspec.MsgspecError as error:
            raise IndexerError(
                f"{path} was answered with something else than scores: {error}"
            ) from error


def _question(incoming: Incoming) -> tuple[str, dict[str, object]] | None:
    """Returns path and body of the request for scores; None without a prompt to score."""
    try:
        body = msgspec.json.decode(incoming.body, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if incoming.path == CHAT:
        # Explicit, as not every indexer defaults to true like vLLM.
        question = {"add_generation_prompt": body.get("add_generation_prompt", True)}
        return "/score_chat_completions", question | _only(OF_CHAT, body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a batch is routed by its first prompt
    if isinstance(prompt, str) and prompt:
        return "/score_completions", {"prompt": prompt, **_only(OF_TEXT, body)}
    if isinstance(prompt, list) and prompt:
        return "/score_tokens", {"tokens": prompt, **_only(OF_TOKENS, body)}
    return None


def _only(names: Sequence[str], body: Mapping[str, object]) -> dict[str, object]:
    return {name: body[name] for name in names if name in body}


Scores = Callable[[Incoming], Mapping[str, float]]
"""Returns cached blocks of a prompt by pod, without pods that have none. Raises IndexerError."""


class Policy(Protocol):
    @property
    def fallbacks(self) -> int:
        """Requests routed without scores, because the indexer failed."""

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        """Returns one of `pods` (at least one); `in_flight` counts the current requests of every
        pod.
        """


PolicyMaker = Callable[[Scores, Random], Policy]
"""Makes a policy from a source of scores and a random generator."""


def policies_of(names: Sequence[str], plugged: Mapping[str, PolicyMaker]) -> dict[str, PolicyMaker]:
    """Returns the makers of these policies; without names, of the default ones and all of plugins."""
    known: dict[str, PolicyMaker] = {name: partial(make_policy, name) for name in POLICIES}
    known |= plugged
    for name in names:
        if name not in known:
            told = f"invalid choice: {name!r} (choose from {', '.join(map(repr, known))})"
            raise UsageError(f"argument --policies: {told}")
    return {name: known[name] for name in names or (*COMPARED, *plugged)}


class Proxy:
    """Forwards POST /v1/completions and /v1/chat/completions, and GET /v1/models to the least
    loaded pod.

    GET /health and GET /routing return the counters of the proxy. Pods that refuse a connection are
    skipped; without a reachable pod the response has status 502.
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
            return relays.refuse(
                start_response, "404 Not Found", f"{method} {path} is not forwarded"
            )
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
            with closing(connection), relays.watching(environ[relays.CLIENT], connection.cut):
                try:
                    connection.request(
                        environ["REQUEST_METHOD"], environ[relays.TARGET], body or None, headers
                    )
                    response = connection.getresponse()
                except (OSError, HTTPException) as error:
                    why = f"{pod} gave no answer: {error!r}"
                    yield from relays.refuse(start_response, "502 Bad Gateway", why, pod)
                    return
                given = [
                    it for it in response.getheaders() if it[0].lower() not in relays.HOP_BY_HOP
                ]
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
