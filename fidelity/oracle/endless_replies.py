"""A plugin of Understudy: replies end at their limit, as those of a random model do.

Older releases ignore `ignore_eos` in responses, and structured outputs before vLLM 0.11.
"""

from random import Random
from typing import Any

from app.plugins import EngineRequest, Plugin

API = 2


class EndlessReplies(Plugin):
    """Lets no reply end early, except by stop strings."""

    name = "endless-replies"

    def reply_length(self) -> Any:
        """Returns the function that the engine asks for the tokens of a reply."""
        return _limit_of

    def keeps_fast_path(self, settings: Any) -> bool:
        """Leaves plain requests, which have `ignore_eos`, on their own path."""
        return True


def _limit_of(request: EngineRequest, rng: Random) -> int:
    return request.max_tokens


EXTENSION = EndlessReplies
