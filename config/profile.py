"""Profiles: what one model on one device costs, and the limits of the engine that it was measured with.

A profile is a YAML file, one of those that are shipped (`config/profiles`) or one's own; `timing: steps`
plays the engine that it describes (docs/fidelity.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from config.declaration import ConfigError

DEFAULT_PROFILE = "qwen3-14b-h100"
SHIPPED = Path(__file__).parent / "profiles"

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=10)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 30)]


class EngineLimits(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """vLLM's options of the same names."""

    num_gpu_blocks: Annotated[int, Meta(ge=2, le=1 << 30)]
    """Blocks of the KV cache, one of which is vLLM's null block."""
    block_size: Annotated[int, Meta(ge=1, le=1024)] = 16
    max_num_seqs: Count = 256
    max_num_batched_tokens: Count = 8192
    max_model_len: Count | None = None
    long_prefill_token_threshold: Annotated[int, Meta(ge=0)] = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    async_scheduling: bool = True


class CostConstants(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Costs of a step (docs/fidelity.md); seconds unless noted. The defaults cost nothing."""

    base: Seconds = 0.0
    """Of every step, whatever it holds."""
    weights: Seconds = 0.0
    """Reading all weights once; with experts, all others."""
    expert_weights: Seconds = 0.0
    """Reading all experts once."""
    expert_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The share of them that a token needs. A step reads those that its tokens need, chosen evenly."""
    per_token: Seconds = 0.0
    """Computing one row of the matrix products."""
    p: Annotated[float, Meta(ge=1, le=100)] = 6.0
    """How sharply reading gives way to computing: the norm of both."""
    tile: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The share of an unfinished tile of 128 rows that is paid for."""
    spill: Seconds = 0.0
    """For each pair of rows: a step of many takes longer for each, as they fall out of a CPU's caches."""
    per_context: Seconds = 0.0
    """For each token that a decode looks back at."""
    per_attention: Seconds = 0.0
    """For each pair of tokens in the attention of a prefill."""
    per_sequence: Seconds = 0.0
    """For each sequence in the step."""
    mixed_context: Seconds = 0.0
    """`per-context` besides, in a step that also holds prefill."""
    slowdown: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """The share by which a hot device prefills slower."""
    tau: Annotated[float, Meta(gt=0, le=100)] = 0.04
    """How fast the device gets hot, and cools."""
    wake: Seconds = 0.0
    """Of a step that finds the device idle."""


class FrontCosts(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Costs of a server around its engine, in seconds."""

    front: Seconds = 0.0
    """From a request's arrival until the scheduler sees it."""
    front_per_token: Seconds = 0.0
    """The same, for each token of the prompt."""
    out_per_stream: Seconds = 0.0
    """To hand out one stream's token of a step."""

    def visible_s(self, arrival_s: float, prompt_tokens: int) -> float:
        """When the scheduler sees a request that arrived then."""
        return arrival_s + self.front + self.front_per_token * prompt_tokens


class SpeculationRates(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Speculative decoding: drafts a step, one for each rate."""

    acceptance: Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(min_length=1, max_length=64)]
    """The chance that a draft is right, given that all before it were; by its place."""


class Profile(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """One engine. What is told of its origin is for people; the rest is what is played."""

    source: str
    """Source of the constants."""
    model: str
    device: str
    checked: str = "not compared with any recording"
    """How far it was compared with the real thing."""
    errors: dict[str, str] = {}
    """In %, by recorded run."""
    engine: EngineLimits
    cost: CostConstants
    front: FrontCosts = FrontCosts()
    speculation: SpeculationRates | None = None

    def settings(self) -> dict[str, object]:
        """The settings that describe its engine, by their names."""
        at = self.engine
        found: dict[str, object] = {
            "kv-cache-size": at.num_gpu_blocks,
            "block-size": at.block_size,
            "max-num-seqs": at.max_num_seqs,
            "max-num-batched-tokens": at.max_num_batched_tokens,
            "long-prefill-token-threshold": at.long_prefill_token_threshold,
            "enable-chunked-prefill": at.enable_chunked_prefill,
            "enable-kvcache": at.enable_prefix_caching,
            "async-scheduling": at.async_scheduling,
        }
        return found if at.max_model_len is None else found | {"max-model-len": at.max_model_len}


def read_profile(name_or_path: str) -> Profile:
    """A shipped profile by its name, or a file. ConfigError names the file and what is wrong with it."""
    from config.yaml_file import parse_yaml

    shipped = SHIPPED / f"{name_or_path}.yaml"
    path = str(shipped) if "/" not in name_or_path and shipped.is_file() else name_or_path
    if not Path(path).is_file():
        names = ", ".join(shipped_profiles())
        raise ConfigError(f"profile {name_or_path}: neither a file nor one of {names}")
    try:
        return msgspec.convert(parse_yaml(path), Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"profile {path}: {error}") from None


def shipped_profiles() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))
