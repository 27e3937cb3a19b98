"""A small load generator: sends completions of readable prompts to this server over HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from random import Random
from typing import Annotated, Any

import gevent
import msgspec
from gevent.pool import Pool
from msgspec import Meta, Struct

from app.engine.simulated.corpus import sample_sentences
from app.serving.http.client import COMPLETIONS, JSON, PATIENCE_S, HttpConnection
from app.serving.http.errors import bad_request
from app.text import Tokenizer
from config.live import LiveSettings
from config.settings import ServerSettings

MOST_IN_FLIGHT = 2000
PIECE_BYTES = 1 << 18
GULP_S = 0.4
"""Seconds between two reads of a response."""
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


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
    """Sends the requests of one plan at a time to this server; `server` has the settings of this rank."""

    def __init__(self, live: LiveSettings, server: ServerSettings, tokenizer: Tokenizer, rng: Random) -> None:
        self._live, self._tokenizer, self._rng = live, tokenizer, rng
        self._address = f"{LOOPBACK.get(server.host, server.host)}:{server.port}"
        self._plan: LoadPlan | None = None
        self._greenlet: gevent.Greenlet | None = None
        self._running = Pool(MOST_IN_FLIGHT)
        self._sent = self._failed = self._answered = 0
        self._error = ""

    def begin(self, plan: LoadPlan) -> None:
        """Starts to send requests. Raises ApiError with status 400 for a plan that cannot run."""
        settings = self._live.current
        most = settings.model.max_model_len
        if settings.model.task != "generate":
            raise bad_request("The load generator asks for completions, which this server has not.")
        if settings.tls.enabled:
            raise bad_request("The load generator does not speak TLS.")
        if plan.prompt_tokens + plan.output_tokens > most:
            raise bad_request(f"Prompt and reply have more than max-model-len tokens, {most}.")
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
        words = self._tokenizer.encode(" ".join(sample_sentences()))

        def cut(tokens: int) -> list[int]:
            """Returns tokens from a random place of the text, which wraps around."""
            first = self._rng.randrange(len(words))
            found = list(words[first : first + tokens])
            while len(found) < tokens:
                found += words[: tokens - len(found)]
            return found

        begins = [cut(plan.shared) for _ in range(plan.groups)]
        due_s = begun_s = time.monotonic()
        while (due_s := due_s + self._rng.expovariate(plan.rate)) < begun_s + plan.seconds:
            gevent.sleep(max(0.0, due_s - time.monotonic()))
            begin = self._rng.choice(begins) if begins else []
            prompt = [*begin, *cut(plan.prompt_tokens - len(begin))]
            self._sent += 1
            self._running.spawn(self._ask, prompt, plan.output_tokens)
        self._running.join()
        self._greenlet = None

    def _ask(self, prompt: Sequence[int], tokens: int) -> None:
        """Greenlet: sends one request, and reads the response to its end.

        Reads are seldom and large: reading each token at once would slow down the server in this process, and
        token times are not measured here.
        """
        settings = self._live.current
        body = {"model": settings.model.served_names[0], "prompt": prompt, "max_tokens": tokens}
        headers = {**JSON, "Connection": "close"}
        if settings.access.api_key:
            headers["Authorization"] = f"Bearer {settings.access.api_key[0]}"
        try:
            with closing(HttpConnection(self._address, PATIENCE_S)) as connection:
                data = msgspec.json.encode({**body, "stream": True, "ignore_eos": True})
                connection.request("POST", COMPLETIONS, data, headers)
                first = connection.sock.recv(PIECE_BYTES)
                while connection.sock.recv(PIECE_BYTES):
                    gevent.sleep(GULP_S)
        except OSError as error:
            self._failed, self._error = self._failed + 1, repr(error)
            return
        status = first[len("HTTP/1.1 ") :][:3].decode(errors="replace")
        if status == "200":
            self._answered += 1
        else:
            told = f"status {status}" if status else "the connection broke off"
            self._failed, self._error = self._failed + 1, told
