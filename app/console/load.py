"""A small load generator: sends completions of readable prompts to this server over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from random import Random
from typing import Annotated, Any

import gevent
import msgspec
from gevent.pool import Pool
from msgspec import Meta, Struct

from app.serving.http.client import COMPLETIONS, JSON, PATIENCE_S, Connection
from app.serving.http.errors import bad_request

MOST_IN_FLIGHT = 2000
PIECE_BYTES = 1 << 18
GULP_S = 0.4
"""Seconds between two reads of a response."""
OK = b"200"


class LoadPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """Poisson arrivals at `rate` requests a second.

    With `groups` the prompts of each group begin with the same `shared` tokens.
    """

    rate: Annotated[float, Meta(gt=0, le=500)] = 5.0
    seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    prompt_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 200
    output_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 100
    groups: Annotated[int, Meta(ge=0, le=1000)] = 0
    shared: Annotated[int, Meta(ge=0, le=100_000)] = 0


class Generator:
    def __init__(
        self,
        address: Callable[[], tuple[str, int]],
        model: str,
        key: Callable[[], str | None],
        words: Callable[[], Sequence[int]],
        most_tokens: int,
        rng: Random,
        refusal: str = "",
    ) -> None:
        """`key` returns an API key of this server, `words` the tokens of a text.

        `most_tokens` limits prompt and reply together. `refusal` is why this server cannot be sent requests.
        """
        self._address, self._model, self._key = address, model, key
        self._words, self._most_tokens, self._rng = words, most_tokens, rng
        self._refusal = refusal
        self._plan: LoadPlan | None = None
        self._greenlet: gevent.Greenlet | None = None
        self._running = Pool(MOST_IN_FLIGHT)
        self._sent = self._failed = self._answered = 0
        self._error = ""

    def begin(self, plan: LoadPlan) -> None:
        """Starts to send requests. Raises ApiError with status 400 for a plan that cannot run."""
        if self._refusal:
            raise bad_request(self._refusal)
        if plan.prompt_tokens + plan.output_tokens > self._most_tokens:
            raise bad_request(f"Prompt and reply have more than max-model-len tokens, {self._most_tokens}.")
        if plan.shared >= plan.prompt_tokens and plan.groups:
            raise bad_request("A prompt must have more tokens than it shares.")
        self.end()
        self._plan = plan
        self._sent = self._failed = self._answered = 0
        self._error = ""
        self._greenlet = gevent.spawn(self._play, plan)

    def end(self) -> None:
        """Sends no more requests, and cuts off the running ones."""
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is not None:
            greenlet.kill(block=False)
        self._running.kill(block=False)
        self._running = Pool(MOST_IN_FLIGHT)

    def summary(self) -> dict[str, Any] | None:
        """Returns the plan and its counters; None before the first plan."""
        if self._plan is None:
            return None
        return {
            "active": self._greenlet is not None,
            "sent": self._sent,
            "answered": self._answered,
            "failed": self._failed,
            "in_flight": len(self._running),
            "error": self._error,
            **msgspec.to_builtins(self._plan),
        }

    def _play(self, plan: LoadPlan) -> None:
        """Greenlet: due times are absolute, so that the time to send does not lower the rate."""
        words = self._words()
        begins = [self._cut(words, plan.shared) for _ in range(plan.groups)]
        due_s = begun_s = time.monotonic()
        while (due_s := due_s + self._rng.expovariate(plan.rate)) < begun_s + plan.seconds:
            gevent.sleep(max(0.0, due_s - time.monotonic()))
            begin = self._rng.choice(begins) if begins else []
            prompt = [*begin, *self._cut(words, plan.prompt_tokens - len(begin))]
            self._sent += 1
            self._running.spawn(self._ask, prompt, plan.output_tokens)
        self._running.join()
        self._greenlet = None

    def _cut(self, words: Sequence[int], tokens: int) -> list[int]:
        """Returns `tokens` tokens from a random place of the text, which wraps around."""
        first = self._rng.randrange(len(words))
        cut = list(words[first : first + tokens])
        while len(cut) < tokens:
            cut += words[: tokens - len(cut)]
        return cut

    def _ask(self, prompt: Sequence[int], tokens: int) -> None:
        """Greenlet: sends one request and discards the response."""
        asked = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": tokens,
            "stream": True,
            "ignore_eos": True,
        }
        try:
            status = exchange(self._address(), msgspec.json.encode(asked), self._key())
        except OSError as error:
            self._failed, self._error = self._failed + 1, repr(error)
            return
        if status == OK:
            self._answered += 1
        else:
            self._failed, self._error = self._failed + 1, f"status {status.decode(errors='replace')}"


def exchange(address: tuple[str, int], body: bytes, key: str | None) -> bytes:
    """Posts a completion, reads the response to its end and returns the status. OSError without a response.

    Reads are seldom and large: reading each token at once would slow down the server in this process, and
    token times are not measured here.
    """
    headers = {**JSON, "Connection": "close", **({"Authorization": f"Bearer {key}"} if key else {})}
    with closing(Connection(f"{address[0]}:{address[1]}", PATIENCE_S)) as connection:
        connection.request("POST", COMPLETIONS, body, headers)
        first = connection.sock.recv(PIECE_BYTES)
        if not first:
            raise ConnectionError("the connection broke off")
        while connection.sock.recv(PIECE_BYTES):
            gevent.sleep(GULP_S)
    return bytes(first[len("HTTP/1.1 ") :][:3])
