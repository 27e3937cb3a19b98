"""Scores of a request's prompt by the indexer; policies of a fleet, plugins included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

import msgspec
from msgspec import Struct

from app.lab.load.policies import POLICIES, PREFIX_AWARE, RANDOM, ROUND_ROBIN, IndexerError, make_policy
from app.serving.http.client import COMPLETIONS, exchange
from config import UsageError

CHAT = "/v1/chat/completions"
GENERATING = frozenset({COMPLETIONS, CHAT})
"""Paths routed by the policy."""
OF_TOKENS = ("model", "cache_salt")
OF_TEXT = (*OF_TOKENS, "add_special_tokens")
OF_CHAT = (
    *OF_TEXT,
    "messages",
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
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
        """Returns the cached blocks of the prompt, if any, by pod. Raises IndexerError without an answer."""
        question = _question(incoming)
        if question is None:
            return {}
        path, body = question
        try:
            status, answer = exchange(self.address, "POST", path, msgspec.json.encode(body), self._timeout_s)
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
            raise IndexerError(f"{path} was answered with something else than scores: {error}") from error


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
        """Returns one of `pods` (at least one); `in_flight` counts the current requests of every pod."""


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
