"""Requests that share prefixes: users in groups with one system prompt each, in multi-turn conversations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from msgspec import Struct

from app.lab.load.recording_client import RecordingClient, Wanted
from app.serving.http.client import Target

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


def _prompts(prefix: str, turns: int, rng: Random, compose: Compose) -> list[str]:
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


def play(
    requests: Iterable[Wanted],
    address: str,
    concurrency: int | None,
    now: Callable[[], float],
    step: Callable[[], None],
) -> list[Sample]:
    """Sends every request in order, at most `concurrency` at once (None: any number). Returns the samples.

    `step` is called for each request that is sent. Failures are samples.
    """
    samples: list[Sample] = []

    def failed(error: str) -> None:
        samples.append(Sample("", 0.0, 0, 0, error))

    target = Target.of(f"http://{address}")
    client = RecordingClient(target, {}, concurrency, now, lambda sent: step(), failed)
    for it in client.run(requests):
        if it.text_s is None:
            failed("its stream has no text")
        else:
            samples.append(Sample(it.pod, it.text_s - it.send_s, it.input_tokens, it.cached_tokens))
    return samples
