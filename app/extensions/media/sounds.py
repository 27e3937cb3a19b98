"""Rules of models that turn the length of a sound into prompt tokens."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from app.extensions.media.rules import ItemTokens, RuleError

RATE = 16_000
"""Samples per second. The models' processors convert sounds to this rate."""
HOP = 160
"""Samples of a frame."""
BLOCK = 100
"""Frames that Qwen3-Omni encodes together, into `BLOCK_TOKENS` tokens."""
BLOCK_TOKENS = 13
STEP_FRAMES = 4
"""Frames of a token of Gemma 4."""
STRIDE = 8
"""Frames of a token at the end of a sound in Qwen3-Omni."""


CLIP_FRAMES = 3_000
"""Frames that Voxtral and Ultravox encode apart: 30 s."""
WINDOW = 400
"""Samples of a frame of Phi-4. Only whole frames count."""


class SoundRule(Struct, frozen=True, kw_only=True):
    """Frames of 10 ms, which a model turns into tokens.

    Convolutions do so in Qwen-Audio, Qwen-Omni, and Gemma. Phi-4, Voxtral, and Ultravox join
    `stacked_frames`.
    """

    fixed_tokens: int = 0
    """Tokens of every sound, as in Gemma 3n; 0 for a number that follows the length."""
    marks: int = 0
    """Tokens around those of the sound."""
    max_tokens: int = 0
    """Tokens of the longest sound; the rest is cut. 0 for no limit."""
    max_frames: int = 0
    """Frames of the longest sound; the rest is cut. 0 for no limit."""
    blocks: Literal["whole", "hundreds", "padded", "clips", "padded clips", "windows"] = "whole"
    """Frames that are encoded together."""
    stacked_frames: int = 0
    """Frames of a token; 0 for convolutions."""

    def tokens(self, samples: int) -> ItemTokens:
        """Returns the tokens of a sound with so many samples at `RATE`.

        Raises:
            RuleError: The sound is too short.
        """
        count = self.fixed_tokens or self._count(samples)
        if self.max_tokens:
            count = min(count, self.max_tokens)
        if count < 1:
            raise RuleError(
                f"The audio (len={samples}) is too short to be represented inside the model"
            )
        return ItemTokens(count + self.marks, count)

    def _count(self, samples: int) -> int:
        """Returns the tokens that the encoder computes."""
        if self.stacked_frames:
            return self._count_stacked(samples)
        if self.blocks == "padded":
            # Windows of two frames; half of the first window is padding.
            frames = (samples - HOP - 1) // HOP + 1
            return -(-max(0, frames) // STEP_FRAMES)
        frames = -(-samples // HOP)
        if self.max_frames:
            frames = min(frames, self.max_frames)
        if self.blocks == "hundreds":
            count = frames // BLOCK * BLOCK_TOKENS
            remainder = frames % BLOCK
            if remainder:
                count += (remainder - 1) // STRIDE + 1
            return count
        return ((frames - 1) // 2 - 1) // 2 + 1

    def _count_stacked(self, samples: int) -> int:
        frames = -(-samples // HOP)
        if self.blocks == "windows":
            frames = (samples - WINDOW) // HOP + 1
            return -(-frames // self.stacked_frames)
        clips, remainder = divmod(frames, CLIP_FRAMES)
        if remainder and self.blocks == "padded clips":
            remainder = CLIP_FRAMES
        clip_tokens = -(-CLIP_FRAMES // self.stacked_frames)
        return clips * clip_tokens - (-remainder // self.stacked_frames)
