"""Options of the measured servers, from the public start scripts of InferenceMAX.

A script is that of the cell's date, or of its vLLM version where the cell has no date
(SemiAnalysisAI/InferenceX, `benchmarks/**/MODEL_DEVICE.sh`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from benchmarks.cells import Cell

BLACKWELL = ("b200", "b300")
FIRST_WITH_FP8_KEYS = 19
"""First version 0.N of vLLM with which MiniMax was served with keys and values in fp8."""
STEP_TOKENS = 8192
BLACKWELL_STEP_TOKENS = 16384
"""vLLM's default on devices of 160 GiB or more."""


class Recipe(Struct, frozen=True, kw_only=True):
    """What a start script sets."""

    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int = STEP_TOKENS
    max_num_seqs: int | None = None
    """None is the concurrency of the client."""
    has_single_ranks: bool = False
    """With data-parallel attention each rank has one device."""


def recipe_of(cell: Cell) -> Recipe:
    """Returns the options of a cell's server."""
    if cell.client != "inferencemax":
        return Recipe()
    is_blackwell = cell.device in BLACKWELL
    if cell.model.startswith("minimax"):
        if not is_blackwell:
            is_hopper_200 = cell.device == "h200"
            return Recipe(
                gpu_memory_utilization=0.95 if is_hopper_200 else 0.9,
                max_num_seqs=1024 if is_hopper_200 else 256,
            )
        if minor_version(cell) < FIRST_WITH_FP8_KEYS:
            return Recipe(
                gpu_memory_utilization=0.95,
                max_num_batched_tokens=BLACKWELL_STEP_TOKENS,
                max_num_seqs=1024,
            )
        return Recipe(
            kv_cache_dtype="fp8",
            max_num_batched_tokens=2 * cell.input_tokens,
            max_num_seqs=1024,
            has_single_ranks=cell.dp_attention > 1,
        )
    if cell.model.startswith("kimi"):
        return Recipe(has_single_ranks=cell.dp_attention > 1)
    if cell.model.startswith("gpt-oss") and is_blackwell:
        return Recipe(kv_cache_dtype="fp8", max_num_seqs=512)
    if cell.model.startswith("llama") and is_blackwell:
        return Recipe(max_num_seqs=512)  # fp8 keys are in the checkpoint's config
    return Recipe()


def minor_version(cell: Cell) -> int:
    """Returns N of version 0.N; a nightly build is newer than all."""
    match = re.match(r"0\.(\d+)", cell.vllm)
    return int(match.group(1)) if match else 99
