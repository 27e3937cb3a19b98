"""Requests that share prefixes: users in groups with one system prompt each, in multi-turn conversations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

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
    conversations = {(group, user): turns for group, user, turns in _conversations(requests, groups)}
    prefixes = [_prefix(group, prefix_tokens, seed, compose) for group in range(groups)]
    prompts = {
        (group, user): _prompts(prefixes[group], turns, Random(f"{seed}/{group}/{user}"), compose)
        for (group, user), turns in conversations.items()
    }
    sequence = tuple(
        WorkloadRequest(group, user, turn, prompts[group, user][turn])
        for group, user, turn in _shuffled(conversations, Random(f"{seed}/order"))
    )
    own = [_own_tokens(turns) for turns in conversations.values()]
    return Workload(sequence, prefix_tokens + max(own), min(groups, requests) * prefix_tokens + sum(own))


def arrivals(rate: float, rng: Random) -> Iterator[float]:
    """Yields endless gaps in seconds: a Poisson process of `rate` requests a second."""
    while True:
        yield rng.expovariate(rate)


def _conversations(requests: int, groups: int) -> Iterator[tuple[int, int, int]]:
    for group in range(groups):
        left = requests // groups + (group < requests % groups)
        for user in range(math.ceil(left / TURNS)):
            yield group, user, min(TURNS, left - user * TURNS)


def _shuffled(conversations: dict[tuple[int, int], int], rng: Random) -> Iterator[tuple[int, int, int]]:
    places = [conversation for conversation, turns in conversations.items() for _ in range(turns)]
    rng.shuffle(places)
    begun: Counter[tuple[int, int]] = Counter()
    for group, user in places:
        yield group, user, begun[group, user]
        begun[group, user] += 1


def _prefix(group: int, tokens: int, seed: int, compose: Compose) -> str:
    # The heading gives each group a different first block, whatever the text begins with.
    return f"Instructions {group}\n{compose(tokens, Random(f'{seed}/{group}'))}"


def _prompts(prefix: str, turns: int, rng: Random, compose: Compose) -> list[str]:
    """Returns the prompts of a conversation; each begins with the previous one."""
    prompts = [prefix + SEPARATOR + compose(QUESTION_TOKENS, rng)]
    for _ in range(turns - 1):
        turn = (compose(ANSWER_TOKENS, rng), compose(QUESTION_TOKENS, rng))
        prompts.append(SEPARATOR.join((prompts[-1], *turn)))
    return prompts


def _own_tokens(turns: int) -> int:
    """Tokens of a conversation that its group does not share."""
    return turns * QUESTION_TOKENS + (turns - 1) * ANSWER_TOKENS
