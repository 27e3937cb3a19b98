"""Requests that share prefixes: users in groups with one system prompt each, in multi-turn conversations.

`LoadClient` sends them over connections that cooperate with other greenlets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from itertools import repeat
from random import Random

import gevent
import msgspec
from gevent.pool import Pool
from msgspec import Struct

from app.serving.http.client import (
    COMPLETIONS,
    DATA,
    JSON,
    PATIENCE_S,
    ROUTED_TO,
    Connection,
    PromptDetails,
    StreamError,
    one_line,
    read_stream,
)

TURNS = 4
"""Most turns of a user's conversation."""
QUESTION_TOKENS = 60
ANSWER_TOKENS = 40
"""Tokens of an answer in the history of later turns.

The workload has these answers instead of the pods' own, so that every policy gets the same prompts."""
SEPARATOR = "\n\n"

Compose = Callable[[int, Random], str]
"""Returns a text of so many tokens."""


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request: turn `turn` of a `user` of a `group`, all counted from 0."""

    group: int
    user: int
    turn: int
    prompt: str


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of sending, and their estimated token counts."""

    requests: tuple[WorkloadRequest, ...]
    longest_tokens: int
    """Tokens of the longest prompt."""
    distinct_tokens: int
    """Tokens to cache: every system prompt once, every conversation once."""


def make_workload(requests: int, groups: int, prefix_tokens: int, seed: int, compose: Compose) -> Workload:
    """Spreads `requests` evenly over `groups`, in random order; each user's turns stay in order.

    Equal arguments make equal workloads; the number of requests does not change the system prompts.
    """
    conversations: dict[tuple[int, int], int] = {}
    """Turns by group and user."""
    for group in range(groups):
        left = requests // groups + (group < requests % groups)
        for user in range(math.ceil(left / TURNS)):
            conversations[group, user] = min(TURNS, left - user * TURNS)
    # The heading gives each group a different first block, whatever the text begins with.
    prefixes = [
        f"Instructions {group}\n{compose(prefix_tokens, Random(f'{seed}/{group}'))}"
        for group in range(groups)
    ]
    prompts = {
        (group, user): _prompts(prefixes[group], turns, Random(f"{seed}/{group}/{user}"), compose)
        for (group, user), turns in conversations.items()
    }
    order = [conversation for conversation, turns in conversations.items() for _ in range(turns)]
    Random(f"{seed}/order").shuffle(order)
    begun: Counter[tuple[int, int]] = Counter()
    sequence: list[WorkloadRequest] = []
    for group, user in order:
        turn = begun[group, user]
        sequence.append(WorkloadRequest(group, user, turn, prompts[group, user][turn]))
        begun[group, user] += 1
    own = [turns * QUESTION_TOKENS + (turns - 1) * ANSWER_TOKENS for turns in conversations.values()]
    """Tokens of each conversation that its group does not share."""
    distinct = min(groups, requests) * prefix_tokens + sum(own)
    return Workload(tuple(sequence), prefix_tokens + max(own), distinct)


def arrivals(rate: float, rng: Random) -> Iterator[float]:
    """Yields endless gaps in seconds: a Poisson process of `rate` requests a second."""
    while True:
        yield rng.expovariate(rate)


def _prompts(prefix: str, turns: int, rng: Random, compose: Compose) -> list[str]:
    """Returns the prompts of a conversation; each begins with the previous one."""
    prompts = [prefix + SEPARATOR + compose(QUESTION_TOKENS, rng)]
    for _ in range(turns - 1):
        turn = (compose(ANSWER_TOKENS, rng), compose(QUESTION_TOKENS, rng))
        prompts.append(SEPARATOR.join((prompts[-1], *turn)))
    return prompts


class Sample(Struct, frozen=True):
    """Result of one request. `ttft_s` is the time from sending to the first text; `error` may be empty."""

    pod: str
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    error: str = ""


class LoadClient:
    """Streams completions of `tokens` tokens each from the server at `address`."""

    def __init__(self, address: str, model: str, tokens: int, now: Callable[[], float]) -> None:
        self._address = address
        self._body = {"model": model, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        self._now = now

    def run(
        self,
        workload: Workload,
        concurrency: int | None,
        gaps_s: Iterable[float] | None,
        done: Callable[[], None],
    ) -> list[Sample]:
        """Sends every request in order, and returns the samples in the order of their ends.

        At most `concurrency` run at once (None: any number). Each starts at least a gap after the previous.
        """
        samples: list[Sample] = []

        def one(prompt: str) -> None:
            samples.append(self.sample(prompt))
            done()

        running = Pool(concurrency)
        due_s = self._now()
        try:
            # Due times are absolute, so that the time to spawn does not lower the rate.
            for request, gap_s in zip(workload.requests, gaps_s or repeat(0.0), strict=False):
                due_s += gap_s
                gevent.sleep(max(0.0, due_s - self._now()))
                running.spawn(one, request.prompt)
            running.join(raise_error=True)
        finally:
            running.kill()
        return samples

    def sample(self, prompt: str) -> Sample:
        """Sends one request and reads its response to the end. Failures are part of the sample."""
        body = {**self._body, "prompt": prompt, "stream_options": {"include_usage": True}}
        with closing(Connection(self._address, PATIENCE_S)) as connection:
            sent_s = self._now()
            pod = ""
            try:
                connection.request("POST", COMPLETIONS, msgspec.json.encode(body), JSON)
                response = connection.getresponse()
                pod = response.getheader(ROUTED_TO) or ""
                if response.status != 200:
                    return Sample(pod, 0.0, 0, 0, f"status {response.status}: {one_line(response.read())}")
                seen = read_stream((self._now(), line) for line in response if line.startswith(DATA))
            except StreamError as error:
                return Sample(pod, 0.0, 0, 0, str(error))
            except (OSError, HTTPException) as error:
                return Sample(pod, 0.0, 0, 0, repr(error))
        if seen.text_s is None:
            return Sample(pod, 0.0, 0, 0, "its stream has no text")
        details = seen.usage.prompt_tokens_details or PromptDetails()
        return Sample(pod, seen.text_s - sent_s, seen.usage.prompt_tokens, details.cached_tokens or 0)
