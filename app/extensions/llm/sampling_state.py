"""State of a sequence that determines its next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from app.extensions.llm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from app.extensions.llm.structured_output import FormMatcher


class SamplingState(Struct):
    """State of a sequence that determines its next token."""

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: list[int]
    seed: int
    """Seed of this choice: `seed + index` of the request, or one that the engine drew."""
    banned_ids: frozenset[int] = frozenset()
    """Ids that end the sequence, banned before `min_tokens`."""
    form: FormMatcher | None = None
    bad_words: Sequence[Sequence[int]] = ()
    bias: tuple[Tensor, Tensor] | None = None
    """Ids and values of `logit_bias`, which may be many; created in the first step."""
    disallowed: Tensor | None = None
    """True for each token outside of `allowed_token_ids`; created in the first step."""

    @property
    def adjusts(self) -> bool:
        """True when anything but temperature, min_p, top_k and top_p changes the logits."""
        params = self.params
        return bool(
            params.logit_bias
            or params.penalizes
            or self.form
            or self.bad_words
            or params.allowed_token_ids is not None
            or self.bans
        )

    @property
    def bans(self) -> bool:
        """True when the next token must not end the sequence."""
        return bool(self.banned_ids) and len(self.output_ids) < self.params.min_tokens
