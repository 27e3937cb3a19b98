"""A small load generator: sends completions of readable prompts to this server over HTTP."""

import time
from collections.abc import Sequence
from itertools import cycle, islice
from random import Random
from typing import Annotated

import gevent
import msgspec
from gevent.pool import Pool
from msgspec import Meta, Struct
from msgspec.structs import asdict

from app.core.engine.simulated.corpus import sample_sentences
from app.core.server.gunicorn.ranks import LOOPBACK
from app.core.server.http.errors import ApiError, bad_request
from app.core.text.base import Tokenizer
from app.shared.http_client import COMPLETIONS, exchange
from config.settings import ServerSettings
from config.validation import LiveSettings

MAX_IN_FLIGHT = 2000
TIMEOUT_S = 3600.0
"""Longest wait for a whole answer."""


class LoadPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """Poisson arrivals at `rate` a second.

    With `groups`, the prompts of a group begin with the same `shared` tokens.
    """

    rate: Annotated[float, Meta(gt=0, le=500)] = 5.0
    seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    prompt_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 200
    output_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 100
    groups: Annotated[int, Meta(ge=0, le=1000)] = 0
    shared: Annotated[int, Meta(ge=0, le=100_000)] = 0


class LoadCounts(Struct):
    """Progress of a plan; `error` is the last one."""

    active: bool = True
    sent: int = 0
    answered: int = 0
    failed: int = 0
    in_flight: int = 0
    error: str = ""


class Generator:
    """Sends the requests of one plan at a time to this server."""

    def __init__(
        self, live: LiveSettings, server: ServerSettings, tokenizer: Tokenizer, rng: Random
    ) -> None:
        """`server` has the settings of this rank."""
        self._live = live
        self._tokenizer = tokenizer
        self._rng = rng
        self._address = f"{LOOPBACK.get(server.host, server.host)}:{server.port}"
        self._plan: LoadPlan | None = None
        self._counts = LoadCounts()
        self._running = Pool(MAX_IN_FLIGHT)
        self._greenlet = gevent.Greenlet()

    def start(self, plan: LoadPlan) -> None:
        """Starts to send requests, in place of an earlier plan.

        Raises:
            ApiError: Status 400 for a plan that cannot run.
        """
        self._check(plan)
        self.stop()
        self._plan = plan
        self._counts = LoadCounts()
        self._running = Pool(MAX_IN_FLIGHT)
        self._greenlet = gevent.spawn(self._play, plan, self._counts)

    def _check(self, plan: LoadPlan) -> None:
        settings = self._live.current
        max_tokens = settings.model.max_model_len
        if settings.model.task != "generate":
            raise _load_error("requires a server that supports completions")
        if settings.tls.enabled:
            raise _load_error("does not support TLS")
        if settings.server.uds:
            raise _load_error("requires a server that listens on TCP")
        if plan.prompt_tokens + plan.output_tokens > max_tokens:
            raise _load_error(f"must not exceed max-model-len ({max_tokens})")
        if plan.groups and plan.shared >= plan.prompt_tokens:
            raise _load_error("requires prompts that are longer than their shared part")

    def stop(self) -> None:
        """Stops to send requests, and cuts off the running ones."""
        self._counts.active = False
        self._greenlet.kill(block=False)
        self._running.kill(block=False)

    def summary(self) -> dict[str, object] | None:
        """Returns the plan and its counters, or None before the first plan."""
        if self._plan is None:
            return None
        self._counts.in_flight = len(self._running)
        return {**asdict(self._counts), **asdict(self._plan)}

    def _play(self, plan: LoadPlan, counts: LoadCounts) -> None:
        """Sends all requests of a plan, in a greenlet.

        Due times are absolute, so that the time to send does not lower the rate.
        """
        sentences = sample_sentences()
        words = " ".join([*sentences.prose, *sentences.others])
        text = self._tokenizer.encode(words)
        prefixes = [self._random_tokens(text, plan.shared) for _ in range(plan.groups)]
        start_s = time.monotonic()
        due_s = start_s + self._rng.expovariate(plan.rate)
        while due_s < start_s + plan.seconds:
            gevent.sleep(max(0.0, due_s - time.monotonic()))
            prefix: list[int] = []
            if prefixes:
                prefix = self._rng.choice(prefixes)
            counts.sent += 1
            prompt = prefix + self._random_tokens(text, plan.prompt_tokens - len(prefix))
            self._running.spawn(self._send, prompt, plan.output_tokens, counts)
            due_s += self._rng.expovariate(plan.rate)
        self._running.join()
        counts.active = False

    def _random_tokens(self, text: Sequence[int], count: int) -> list[int]:
        """Returns tokens from a random place of the text, which wraps around."""
        start = self._rng.randrange(len(text))
        return list(islice(cycle(text), start, start + count))

    def _send(self, prompt: Sequence[int], max_tokens: int, counts: LoadCounts) -> None:
        """Sends one request, in a greenlet, and reads its whole answer.

        Token times are not measured here.
        """
        settings = self._live.current
        headers: dict[str, str] = {}
        if settings.access.api_key:
            headers["Authorization"] = f"Bearer {settings.access.api_key[0]}"
        body = {
            "model": settings.model.served_names[0],
            "prompt": prompt,
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }
        error = ""
        try:
            status, _ = exchange(
                self._address,
                "POST",
                COMPLETIONS,
                body=msgspec.json.encode(body),
                timeout_s=TIMEOUT_S,
                headers=headers,
            )
            if status != 200:
                error = f"status {status}"
        except OSError as problem:
            error = repr(problem)
        if error:
            counts.failed += 1
            counts.error = error
        else:
            counts.answered += 1


def _load_error(reason: str) -> ApiError:
    return bad_request(f"The load generator {reason}.")
