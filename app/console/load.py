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

from app.engine.simulated.corpus import sample_sentences
from app.serving.gunicorn.ranks import LOOPBACK
from app.serving.http.client import COMPLETIONS, exchange
from app.serving.http.errors import bad_request
from app.text.base import Tokenizer
from config.settings import ServerSettings
from config.validation import LiveSettings

MOST_IN_FLIGHT = 2000
LONGEST_S = 3600.0
"""Longest wait for a whole answer, in seconds."""


class LoadPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """Poisson arrivals at `rate` a second; with `groups`, a group's prompts begin with `shared`
    tokens.
    """

    rate: Annotated[float, Meta(gt=0, le=500)] = 5.0
    seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    prompt_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 200
    output_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 100
    groups: Annotated[int, Meta(ge=0, le=1000)] = 0
    shared: Annotated[int, Meta(ge=0, le=100_000)] = 0


class LoadCounts(Struct):
    active: bool = True
    sent: int = 0
    answered: int = 0
    failed: int = 0
    in_flight: int = 0
    error: str = ""


class Generator:
    """Sends the requests of one plan at a time to this server; `server` has the settings of this
    rank.
    """

    def __init__(
        self, live: LiveSettings, server: ServerSettings, tokenizer: Tokenizer, rng: Random
    ) -> None:
        self._live, self._tokenizer, self._rng = live, tokenizer, rng
        self._address = f"{LOOPBACK.get(server.host, server.host)}:{server.port}"
        self._plan: LoadPlan | None = None
        self._counts = LoadCounts()
        self._running = Pool(MOST_IN_FLIGHT)
        self._greenlet = gevent.Greenlet()

    def begin(self, plan: LoadPlan) -> None:
        """Starts to send requests. Raises ApiError with status 400 for a plan that cannot run."""
        settings = self._live.current
        most = settings.model.max_model_len
        for refused, reason in (
            (settings.model.task != "generate", "asks for completions, which this server has not"),
            (settings.tls.enabled, "does not speak TLS"),
            (settings.server.uds, "sends over TCP, and this server listens at a Unix socket"),
            (
                plan.prompt_tokens + plan.output_tokens > most,
                f"sends at most max-model-len tokens, {most}",
            ),
            (
                plan.groups and plan.shared >= plan.prompt_tokens,
                "needs prompts longer than what they share",
            ),
        ):
            if refused:
                raise bad_request(f"The load generator {reason}.")
        self.end()
        self._plan, self._counts, self._running = plan, LoadCounts(), Pool(MOST_IN_FLIGHT)
        self._greenlet = gevent.spawn(self._play, plan, self._counts)

    def end(self) -> None:
        self._counts.active = False
        self._greenlet.kill(block=False)
        self._running.kill(block=False)

    def summary(self) -> dict[str, object] | None:
        """Returns the plan and its counters; None before the first plan."""
        if self._plan is None:
            return None
        self._counts.in_flight = len(self._running)
        return {**asdict(self._counts), **asdict(self._plan)}

    def _play(self, plan: LoadPlan, counts: LoadCounts) -> None:
        """Greenlet: due times are absolute, so that the time to send does not lower the rate."""
        sentences = sample_sentences()
        words = self._tokenizer.encode(" ".join([*sentences.prose, *sentences.others]))

        def cut(tokens: int) -> list[int]:
            """Returns tokens from a random place of the text, which wraps around."""
            first = self._rng.randrange(len(words))
            return list(islice(cycle(words), first, first + tokens))

        begins = [cut(plan.shared) for _ in range(plan.groups)]
        due_s = begun_s = time.monotonic()
        while (due_s := due_s + self._rng.expovariate(plan.rate)) < begun_s + plan.seconds:
            gevent.sleep(max(0.0, due_s - time.monotonic()))
            begin = self._rng.choice(begins) if begins else []
            counts.sent += 1
            prompt = begin + cut(plan.prompt_tokens - len(begin))
            self._running.spawn(self._ask, prompt, plan.output_tokens, counts)
        self._running.join()
        counts.active = False

    def _ask(self, prompt: Sequence[int], tokens: int, counts: LoadCounts) -> None:
        """Greenlet:

        sends one request, whose answer comes whole: token times are not measured here.
        """
        settings = self._live.current
        body = {"model": settings.model.served_names[0], "prompt": prompt, "max_tokens": tokens}
        key = settings.access.api_key[:1]
        headers = {"Authorization": f"Bearer {key[0]}"} if key else {}
        data = msgspec.json.encode({**body, "ignore_eos": True})
        try:
            status, _ = exchange(self._address, "POST", COMPLETIONS, data, LONGEST_S, headers)
            error = "" if status == 200 else f"status {status}"
        except OSError as failed:
            error = repr(failed)
        counts.answered += not error
        counts.failed += bool(error)
        counts.error = error or counts.error
