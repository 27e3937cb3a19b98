"""Rules of models that turn a film into prompt tokens, with the frames that vLLM samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.extensions.media.grids import AreaGrid
from app.extensions.media.rules import Count, ItemTokens, RuleError
from app.extensions.media.tracks import Film

Encode = Callable[[str], Sequence[int]]
"""Returns the tokens of a text."""
UNIFORM_FRAMES = 32
"""Frames that vLLM samples of a film for models without a sampling rate of their own."""
MIN_FRAMES = 4
MAX_FRAMES = 768
FPS = 2
"""Frames per second that Qwen's models sample."""
STEP_FRAMES = 2
"""Frames that Qwen's models encode together."""


class VideoRule(Struct, frozen=True, kw_only=True):
    """A rule, with the facts of a model."""

    form: Literal["frames", "grid", "timed_grid"]
    """Frames of one size, a grid of patches in space and time, or one with times."""
    frame_tokens: Count = 0
    """Tokens of a frame that the encoder computes."""
    frame_text: str = ""
    """Text before each frame, with its ``{number}``."""
    marks: Count = 0
    """Marks around each frame."""
    end_tokens: Count = 0
    """Tokens behind the last frame that the encoder computes, too."""
    grid: AreaGrid | None = None
    """The patches of a frame; a `timed_grid` has limits for the area of all frames."""

    def sample(self, film: Film) -> list[int]:
        """Returns the numbers of the frames that vLLM decodes."""
        total = film.frames
        if self.form == "frames":
            return evenly(total, min(total, UNIFORM_FRAMES))
        seconds = total / film.fps
        if self.form == "timed_grid":
            count = min(max(int(seconds * FPS), MIN_FRAMES), MAX_FRAMES, total)
            return [round(number) for number in spaced(total - 1, count)]
        max_frames = min(MAX_FRAMES, total) // STEP_FRAMES * STEP_FRAMES
        frames = min(max(seconds * FPS, MIN_FRAMES), max_frames, total)
        count = math.floor(frames / STEP_FRAMES) * STEP_FRAMES
        if not count:
            raise RuleError("division by zero")
        step = total / count
        # As in the processors, rounding of the step may add a frame.
        return [min(int(number * step), total - 1) for number in range(math.ceil(total / step))]

    def tokens(self, film: Film, encode: Encode) -> ItemTokens:
        """Returns the tokens of a film.

        Raises:
            RuleError: The model rejects the film.
        """
        indices = self.sample(film)
        if self.form == "frames":
            return self._frames(len(indices), encode)
        grid = self.grid
        assert grid is not None
        steps = -(-len(indices) // STEP_FRAMES)
        if self.form == "grid":
            count = steps * grid.tokens(film.width, film.height).length
            return ItemTokens(count, count)
        if len(indices) < STEP_FRAMES:
            raise RuleError(f"t:{len(indices)} must be larger than temporal_factor:{STEP_FRAMES}")
        count = replace(grid, frames=len(indices)).tokens(film.width, film.height).length
        length = steps * (count + 2)
        if len(indices) % STEP_FRAMES:
            indices = [*indices, indices[-1]]
        for step in range(steps):
            pair = indices[step * STEP_FRAMES : (step + 1) * STEP_FRAMES]
            time_s = sum(number / film.fps for number in pair) / STEP_FRAMES
            length += len(encode(f"<{time_s:.1f} seconds>"))
        return ItemTokens(length, steps * count)

    def _frames(self, count: int, encode: Encode) -> ItemTokens:
        embeddings = count * self.frame_tokens + self.end_tokens
        length = embeddings + count * self.marks
        if self.frame_text:
            for number in range(1, count + 1):
                length += len(encode(self.frame_text.replace("{number}", str(number))))
        return ItemTokens(length, embeddings)


def spaced(last: int, count: int) -> list[float]:
    """Returns `count` numbers from 0 to `last` at equal distances."""
    if count == 1:
        return [0.0]
    step = last / (count - 1)
    return [*(number * step for number in range(count - 1)), float(last)]


def evenly(total: int, count: int) -> list[int]:
    """Returns the numbers of `count` of the frames, rounded down."""
    return [int(number) for number in spaced(total - 1, count)]
