"""Options of the measured servers, from the public start scripts of InferenceMAX.

A script is that of the cell's date, or of its vLLM version where the cell has no date
(SemiAnalysisAI/InferenceX, `benchmarks/**/MODEL_DEVICE.sh`).
"""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.extensions.costs.engine_options import AUTO_BACKEND, MAX_CAPTURE_SIZE, TRITON
from benchmarks.measured_cell import MeasuredCell

C = TypeVar("C", bound=MeasuredCell)

BLACKWELL = ("b200", "b300")
FIRST_WITH_FP8_KEYS = 19
"""First version 0.N of vLLM with which MiniMax was served with keys and values in fp8."""
HOPPER_EXPERT_DEVICES = 8
"""Devices of the configuration of MiniMax on H200 whose script enables expert parallelism."""
PROMPT_CAPTURE_SIZE = 2048
"""Tokens of the largest CUDA graph of servers that also capture prompts."""
KIMI_CHANGED = "2026-04-20"
"""First day of the script of Kimi on B200 that sets the tokens of a step."""
FIRST_NVFP4_SCRIPT = "2026-04-08"
"""First day of the script of MiniMax in NVFP4. Servers before it show the least TTFT of prompts
without CUDA graphs: 100 ms for 1,024 tokens, which later servers answer in 56 ms.
"""
FIRST_TF32_SCRIPT = "2026-04-21"
"""First day of the scripts of MiniMax on Blackwell that compute float32 with tensor cores."""
LAST_SHORT_TOKENS = 1024
LAST_SHORT_CONCURRENCY = 128
"""From that day on, prompts of `LAST_SHORT_TOKENS` were measured with up to so many requests in
flight, on four devices without expert parallelism.
"""
RANKS_WITH_NVFP4 = 2
"""Devices on which MiniMax in NVFP4 was measured with data parallelism."""
STEP_TOKENS = 8192
"""vLLM's default before 0.28, also on Blackwell (`vllm_facts.step_defaults`)."""


class Recipe(Struct, frozen=True, kw_only=True):
    """What a start script sets."""

    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int = STEP_TOKENS
    max_num_seqs: int | None = None
    """None is the concurrency of the client."""
    has_single_ranks: bool = False
    """With data-parallel attention each rank has one device."""
    enable_expert_parallel: bool | None = None
    """None is what the cell's label says."""
    max_cudagraph_capture_size: int = MAX_CAPTURE_SIZE
    moe_backend: str = AUTO_BACKEND
    has_tf32: bool = False


def recipe_of(cell: MeasuredCell) -> Recipe:
    """Returns the options of a cell's server."""
    if cell.client != "inferencemax":
        return Recipe()
    is_blackwell = cell.device in BLACKWELL
    if cell.model.startswith("minimax"):
        if not is_blackwell:
            if cell.device != "h200":
                return Recipe(max_num_seqs=256)
            # This script tested `EP_SIZE -ge 1` from the configuration of 8 devices on.
            return Recipe(
                gpu_memory_utilization=0.95,
                max_num_seqs=1024,
                enable_expert_parallel=cell.tensor_parallel == HOPPER_EXPERT_DEVICES,
            )
        if minor_version(cell) < FIRST_WITH_FP8_KEYS:
            return Recipe(
                gpu_memory_utilization=0.95,
                max_num_seqs=1024,
                enable_expert_parallel=True,  # `EP_SIZE -ge 1`, as on H200
                moe_backend=TRITON,  # VLLM_USE_FLASHINFER_MOE_FP8=0, VLLM_MOE_USE_DEEP_GEMM=0
            )
        if cell.model == "minimax-m2.5-nvfp4" and cell.measured < FIRST_NVFP4_SCRIPT:
            return Recipe(
                kv_cache_dtype="fp8",
                max_num_seqs=1024,
            )
        return Recipe(
            kv_cache_dtype="fp8",
            max_num_batched_tokens=2 * cell.input_tokens,
            max_num_seqs=1024,
            has_single_ranks=cell.dp_attention > 1,
            max_cudagraph_capture_size=PROMPT_CAPTURE_SIZE,
            has_tf32=has_tf32(cell),
        )
    if cell.model.startswith("kimi"):
        # The script does not read `EP_SIZE`, which is 4 in a part of the configurations.
        step_tokens = STEP_TOKENS
        capture_size = MAX_CAPTURE_SIZE
        if cell.device == "b200" and cell.measured >= KIMI_CHANGED:
            step_tokens = 2 * cell.input_tokens
            capture_size = PROMPT_CAPTURE_SIZE
        return Recipe(
            max_num_batched_tokens=step_tokens,
            has_single_ranks=cell.dp_attention > 1,
            enable_expert_parallel=False,
            max_cudagraph_capture_size=capture_size,
        )
    if cell.model.startswith("gpt-oss"):
        if not is_blackwell:
            return Recipe(max_cudagraph_capture_size=PROMPT_CAPTURE_SIZE)
        return Recipe(
            kv_cache_dtype="fp8",
            max_num_seqs=512,
            max_cudagraph_capture_size=PROMPT_CAPTURE_SIZE,
        )
    if cell.model.startswith("llama"):
        if is_blackwell:
            return Recipe(max_num_seqs=512)  # fp8 keys are in the checkpoint's config
        if cell.device == "h100":
            # The script says `--config=config.yaml`, and vLLM 0.10.2 reads a file after
            # `--config` alone. It does not take the format of the cache from the checkpoint.
            return Recipe(kv_cache_dtype="bfloat16")
    return Recipe()


def as_started(cell: C) -> C:
    """Returns the cell with the parallelism of its start script.

    The table labels a configuration `{tp: 4, ep: 4}` of MiniMax with four ranks of data parallelism
    and `ep` 16. The script in FP8 has no data parallelism, and the search space in NVFP4 has it on
    two devices alone.
    """
    if not cell.model.startswith("minimax") or cell.dp_attention == 1:
        return cell
    if "nvfp4" in cell.model and cell.tensor_parallel == RANKS_WITH_NVFP4:
        return cell
    return replace(cell, dp_attention=1, ep=cell.tensor_parallel)


def has_tf32(cell: MeasuredCell) -> bool:
    """Returns whether the script of MiniMax on Blackwell set VLLM_FLOAT32_MATMUL_PRECISION=high.

    A cell without a date has the last script whose search space has its configuration.
    """
    if cell.measured:
        return cell.measured >= FIRST_TF32_SCRIPT
    return cell.input_tokens > LAST_SHORT_TOKENS or (
        cell.tensor_parallel > 2 and cell.concurrency <= LAST_SHORT_CONCURRENCY
    )


def minor_version(cell: MeasuredCell) -> int:
    """Returns N of version 0.N; a nightly build is newer than all."""
    match = re.match(r"0\.(\d+)", cell.vllm)
    return int(match.group(1)) if match else 99
