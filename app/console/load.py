"""A small load generator: completions of readable prompts, sent to this very server as clients send them."""

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

from app.http.errors import bad_request
from app.load.client import COMPLETIONS, JSON, PATIENCE_S, Connection

MOST_IN_FLIGHT = 2000
PIECE_BYTES = 1 << 18
GULP_S = 0.4
"""Between two looks at an answer."""
OK = b"200"


class LoadPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that come by chance, `rate` a second on average, each with so many tokens.

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
        """`key` is an API key of this server, `words` the tokens of a text; a prompt and its reply have
        `most_tokens` together. `refusal` says why nothing can be sent to this server.
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
        """ApiError with status 400 for what cannot be played."""
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
        """Send no more, and cut off what runs."""
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is not None:
            greenlet.kill(block=False)
        self._running.kill(block=False)
        self._running = Pool(MOST_IN_FLIGHT)

    def told(self) -> dict[str, Any] | None:
        """How it goes; None before the first plan."""
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
        """Greenlet: due moments are absolute, so that what sending takes does not make the rate lower."""
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
        """Returns `tokens` tokens from a random place of the text, which begins again at its end."""
        first = self._rng.randrange(len(words))
        cut = list(words[first : first + tokens])
        while len(cut) < tokens:
            cut += words[: tokens - len(cut)]
        return cut

    def _ask(self, prompt: Sequence[int], tokens: int) -> None:
        """Greenlet: one request, whose answer is thrown away."""
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
    """Post a completion, and read its answer to the end; its status. OSError when there is none.

    It is read in gulps: who would take every token as it comes would slow down the server that it shares a
    process with, and nothing here looks at when they come.
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
