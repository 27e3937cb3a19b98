"""Options and counters of the engine."""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Struct, field

from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.wire import EngineSizes

MINIMUMS: Final = {
    "num_blocks": 2,
    "block_size": 1,
    "max_seq_length": 2,
    "max_queue_size": 0,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
}
"""Sizes below which no request could ever run."""


class EngineOptions(EngineSizes, frozen=True, kw_only=True):
    """Sizes and limits of the engine.

    Raises:
        ModelLoadError: A size is so small that no request could ever run.
    """

    max_seq_length: int = 4096
    kv_events: bool = False
    """True to keep events of blocks for `take_events`."""
    form_cpu_s: float | None = None
    """Maximum CPU time in seconds to compile a structured output in the sandbox.

    None compiles without a sandbox.
    """

    def __post_init__(self) -> None:
        for name, minimum in MINIMUMS.items():
            value = getattr(self, name)
            if value < minimum:
                raise ModelLoadError(f"{name} must be at least {minimum}, got {value}.")


class EngineStats(Struct):
    """Counts since the start, or since they were cleared."""

    steps: int = 0
    step_s: float = 0.0
    prompt_tokens: int = 0
    """Computed prompt tokens, without tokens found in the cache."""
    generated_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the cache, counted as in vLLM."""
    prefix_hits: int = 0
    drafts: int = 0
    """Checked drafts: a sequence has one in a step, of several tokens."""
    draft_tokens: int = 0
    accepted: Counter[int] = field(default_factory=Counter)
    """Right tokens of drafts, by position from 0."""
    requests: int = 0
    completed: int = 0
    failed: int = 0
