"""The workload of a fleet: conversations of users in groups with one system prompt each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

MAX_TURNS = 4
"""Most turns of a user's conversation."""
QUESTION_TOKENS = 60
ANSWER_TOKENS = 40
"""Tokens of an answer in the history of later turns: the same under every policy."""
SEPARATOR = "\n\n"

Compose = Callable[[int, Random], str]
"""Makes a random text with a number of tokens."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in the order of sending."""

    prompts: tuple[str, ...]
    longest_tokens: int
    """Estimated tokens of the longest prompt."""
    distinct_tokens: int
    """Estimated tokens to cache: every system prompt once, every conversation once."""


def make_workload(
    requests: int, groups: int, prefix_tokens: int, *, seed: int, compose: Compose
) -> Workload:
    """Spreads `requests` evenly over `groups`, in random order."""
    conversations: list[list[str]] = []
    """The prompts of each user, turn by turn."""
    for group in range(groups):
        # The heading gives each group a different first block, whatever the text begins with.
        prefix = f"Instructions {group}\n{compose(prefix_tokens, Random(f'{seed}/{group}'))}"
        group_requests = requests // groups + (group < requests % groups)
        for user in range(math.ceil(group_requests / MAX_TURNS)):
            turns = min(MAX_TURNS, group_requests - user * MAX_TURNS)
            rng = Random(f"{seed}/{group}/{user}")
            conversations.append(_converse(prefix, turns, rng, compose))
    order = [number for number, prompts in enumerate(conversations) for _ in prompts]
    Random(f"{seed}/order").shuffle(order)
    remaining_prompts = [iter(prompts) for prompts in conversations]
    unshared_tokens = [
        len(prompts) * (QUESTION_TOKENS + ANSWER_TOKENS) - ANSWER_TOKENS
        for prompts in conversations
    ]
    return Workload(
        prompts=tuple(next(remaining_prompts[number]) for number in order),
        longest_tokens=prefix_tokens + max(unshared_tokens),
        distinct_tokens=min(groups, requests) * prefix_tokens + sum(unshared_tokens),
    )


def _converse(prefix: str, turns: int, rng: Random, compose: Compose) -> list[str]:
    """Returns the prompts of a conversation; each continues the one before."""
    prompts = [prefix + SEPARATOR + compose(QUESTION_TOKENS, rng)]
    while len(prompts) < turns:
        answer = compose(ANSWER_TOKENS, rng)
        question = compose(QUESTION_TOKENS, rng)
        prompts.append(SEPARATOR.join((prompts[-1], answer, question)))
    return prompts
