"""How many prompt tokens fit into the time of a step, learned from the steps before."""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import Final

import numpy

from app.core.engine.scheduler import PREFILL_SHARE

FIRST_TOKENS: Final = 64
"""Maximum prompt tokens of the first step, before anything is measured."""
MAX_GROWTH: Final = 4
"""Maximum size of a step, as a factor of the largest one measured."""
WINDOW: Final = 16
"""Steps that count; the machine may be faster or slower than before."""
OUTLIER_FACTOR: Final = 1.5
"""Maximum time that a step counts, as a factor of the expected time.

The process may have been stopped meanwhile.
"""
LATE_FACTOR: Final = 1.2
"""Factor of the target, or of a longer expected time, after which a step is late.

Decodes should then wait no longer for prompts.
"""
MAX_DROPS: Final = 3
"""Maximum late steps in a row that drop their part of a prompt."""
FIT_ROUNDS: Final = 8
MIN_SECONDS: Final = 1e-9


class StepTimes:
    """Fits `seconds = base + per_token * tokens + per_pair * pairs` to the latest steps.

    Steps of decodes alone show `base`, steps with prompts the other constants. `tokens` are all
    tokens of a step, those of decodes too. `pairs` counts for each token those before it in its
    sequence. The constants are not negative; each round improves them one by one, from their last
    values. `target_s` is the time in seconds that a step with prompts should take.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._decodes: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)
        self._steps: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)
        """Base, tokens and pairs of each step, divided by its seconds: so errors are relative."""
        self._constants = [0.0, 0.0, 0.0]
        self._max_tokens = 0
        """Tokens of the largest step so far."""

    def seconds(self, tokens: int, pairs: float) -> float:
        """Returns the expected time of a step; 0 before the first one."""
        base, per_token, per_pair = self._constants
        return base + per_token * tokens + per_pair * pairs

    def is_late(self, share: float, seconds: float, expected_s: float) -> bool:
        """Returns True if a step will end after its limit.

        After `seconds` a `share` of its layers is computed. The others are assumed to be as fast as
        expected.
        """
        limit_s = LATE_FACTOR * max(self._target_s, expected_s)
        return self._target_s > 0 and seconds + (1 - share) * expected_s > limit_s

    def max_prompt_tokens(self, decodes: int, context: int, start: int) -> int:
        """Returns the prompt tokens that fit, from position `start`.

        The step also has `decodes`, with `context` tokens before them. Prompts get what is left of
        the target, or `PREFILL_SHARE` of the time of all else in the step, whichever is more.
        """
        if not self._steps:
            return FIRST_TOKENS
        _, per_token, per_pair = self._constants
        fixed_s = self.seconds(decodes, context)
        left_s = max(self._target_s - fixed_s, PREFILL_SHARE * fixed_s)
        # per_pair / 2 * tokens² + slope * tokens = left_s
        slope = per_token + per_pair * start
        root = slope + sqrt(slope * slope + 2 * per_pair * left_s)
        tokens = MAX_GROWTH * self._max_tokens
        if 2 * left_s < tokens * root:
            tokens = int(2 * left_s / root)
        return max(1, tokens)

    def add(self, tokens: int, pairs: float, seconds: float, has_prompt: bool = True) -> None:
        """Learns from a step."""
        seconds = max(seconds, MIN_SECONDS)
        if not has_prompt:
            self._decodes.append((1 / seconds, tokens / seconds, pairs / seconds))
            return
        if len(self._steps) > 1:
            seconds = min(seconds, OUTLIER_FACTOR * self.seconds(tokens, pairs))
        elif not self._steps:
            self._constants[1] = seconds / tokens
        self._max_tokens = max(self._max_tokens, tokens)
        self._steps.append((1 / seconds, tokens / seconds, pairs / seconds))
        self._fit()

    def _fit(self) -> None:
        steps = numpy.array([*self._steps, *self._decodes])
        constants = self._constants
        for _ in range(FIT_ROUNDS):
            for i, column in enumerate(steps.T):
                square = float(column @ column)
                if square:
                    change = float(column @ (1 - steps @ constants)) / square
                    constants[i] = max(0.0, constants[i] + change)
