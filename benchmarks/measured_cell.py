"""A measurement of a real server at one concurrency: a row of a table of cells."""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

HELD_OUT_DATE = "2026-04-05"
"""Cells measured on this day or later are not fitted."""
HELD_OUT_MODELS = ("kimi-k2.5",)
HELD_OUT_DEVICES = ("b300",)
HELD_OUT_GROUPS = 3
"""One group in so many is not fitted, by a hash of its name."""


class MeasuredCell(Struct, frozen=True, kw_only=True):
    """One measurement."""

    file: str
    model: str
    device: str
    tensor_parallel: int
    ep: int
    dp_attention: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    vllm: str
    client: str
    measured: str
    ttft_ms: float | None
    tpot_ms: float | None
    source: str = ""

    @property
    def group(self) -> str:
        """Name of the cells that share model, device and parallelism."""
        parallel = f"tp {self.tensor_parallel}"
        if self.ep > 1:
            parallel += f" ep {self.ep}"
        if self.dp_attention > 1:
            parallel += f" dp {self.dp_attention}"
        return f"{self.model}, {self.device}, {parallel}, vLLM {self.vllm or 'recent'}"

    @property
    def is_held_out(self) -> bool:
        """True for a cell that research/fit_versions.py does not see.

        It does not see some models and devices, new cells, and a third of the groups.
        """
        if self.model in HELD_OUT_MODELS or self.device in HELD_OUT_DEVICES:
            return True
        if self.measured >= HELD_OUT_DATE:
            return True
        return sha256(self.group.encode()).digest()[0] % HELD_OUT_GROUPS == 0
