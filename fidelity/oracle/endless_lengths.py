"""Replies that end at their limit, as those of a random model do.

Older releases ignore `ignore_eos` in responses, and structured outputs before vLLM 0.11.
"""

from collections.abc import Callable
from random import Random

from app.plugins import EngineRequest, Plugin


class EndlessReplies(Plugin):
    """Lets no reply end early, except by stop strings."""

    name = "endless-replies"

    def reply_length(self) -> Callable[[EngineRequest, Random], int]:
        """Returns the function that the engine asks for the tokens of a reply."""
        return _limit_of


def _limit_of(request: EngineRequest, rng: Random) -> int:
    return request.max_tokens
