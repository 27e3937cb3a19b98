"""How many prompt tokens fit into the time of a step, learned from the steps before."""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import Final

import numpy

from app.engine.core.scheduler import PREFILL_SHARE

FIRST_TOKENS: Final = 64
"""Most prompt tokens of the first step, before anything is measured."""
GROWTH: Final = 4
"""Most times that a step exceeds the largest one measured."""
WINDOW: Final = 16
"""Steps that count; the machine may be faster or slower than before."""
OUTLIER: Final = 1.5
"""Most times that a step counts for longer than expected:

the process may have been stopped meanwhile.
"""
LATE: Final = 1.2
"""Times the target, or a longer expected time, after which decodes should wait no longer for
prompts.
"""
MOST_DROPS: Final = 3  # late steps in a row without their part of a prompt
ROUNDS: Final = 8


class StepTimes:
    """Fits `seconds = base + per_token * tokens + per_pair * pairs` to the latest steps.

    Steps of decodes alone show `base`, steps with prompts the rest. `tokens` are all tokens of a
    step, those of decodes too. `pairs` counts for each token those before it in its sequence. The
    constants are not negative; each round improves them one by one, from their last values.
    """

    def __init__(self, target_s: float) -> None:
        """`target_s`: seconds that a step with prompts should take."""
        self._target_s = target_s
        self._decodes: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)
        self._steps: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)
        """Base, tokens and pairs of each step, divided by its seconds: so errors are relative."""
        self._constants = [0.0, 0.0, 0.0]
        self._largest_step = 0

    def seconds(self, tokens: int, pairs: float) -> float:
        """Returns the expected time of a step; 0 before the first one."""
        base, per_token, per_pair = self._constants
        return base + per_token * tokens + per_pair * pairs

    def is_late(self, done: float, seconds: float, expected_s: float) -> bool:
        """Returns whether the other layers, as fast as expected, end after the step's limit."""
        limit_s = LATE * max(self._target_s, expected_s)
        return self._target_s > 0 and seconds + (1 - done) * expected_s > limit_s

    def most_tokens(self, decodes: int, context: int, start: int) -> int:
        """Returns the prompt tokens that fit, from position `start`.

        The step also has `decodes`, with `context` tokens before them. Prompts get the rest of the
        target, or `PREFILL_SHARE` of the time of all else in the step, whichever is more.
        """
        if not self._steps:
            return FIRST_TOKENS
        _, per_token, per_pair = self._constants
        fixed_s = self.seconds(decodes, context)
        left_s = max(self._target_s - fixed_s, PREFILL_SHARE * fixed_s)
        # per_pair / 2 * tokens² + slope * tokens = left_s
        slope = per_token + per_pair * start
        root = slope + sqrt(slope * slope + 2 * per_pair * left_s)
        most = GROWTH * self._largest_step
        return max(1, most if 2 * left_s >= most * root else int(2 * left_s / root))

    def add(self, tokens: int, pairs: float, seconds: float, has_prompt: bool = True) -> None:
        """Learns from a step."""
        seconds = max(seconds, 1e-9)
        if not has_prompt:
            self._decodes.append((1 / seconds, tokens / seconds, pairs / seconds))
            return
        if len(self._steps) > 1:
            seconds = min(seconds, OUTLIER * self.seconds(tokens, pairs))
        elif not self._steps:
            self._constants[1] = seconds / tokens
        self._largest_step = max(self._largest_step, tokens)
        self._steps.append((1 / seconds, tokens / seconds, pairs / seconds))
        self._fit()

    def _fit(self) -> None:
        steps, constants = numpy.array([*self._steps, *self._decodes]), self._constants
        for _ in range(ROUNDS):
            for place, column in enumerate(steps.T):
                if square := float(column @ column):
                    change = float(column @ (1 - steps @ constants)) / square
                    constants[place] = max(0.0, constants[place] + change)
