"""Profiles: costs of a model on a device, and limits of the measured engine.

A profile is a YAML file, shipped (`app/core/engine/profiles`) or written by the user. With
`timing: steps`, a server simulates the engine of the profile (docs/how-timing-works.md).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from config.declaration import ConfigError

if TYPE_CHECKING:
    from vllm_facts.speculative import SyntheticDrafts

SETTING_NAMES = {"num-gpu-blocks": "kv-cache-size", "enable-prefix-caching": "enable-kvcache"}
"""Limits of an engine whose settings have other names."""
SHIPPED = Path(__file__).parent / "profiles"

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=10)]
Points: TypeAlias = tuple[tuple[Annotated[int, Meta(ge=1, le=1 << 20)], Seconds], ...]
"""Count and seconds; linear between them."""
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 30)]


class EngineLimits(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """vLLM's options of the same names."""

    num_gpu_blocks: Annotated[int, Meta(ge=2, le=1 << 30)]
    """Blocks of the KV cache, vLLM's null block included."""
    block_size: Annotated[int, Meta(ge=1, le=1024)] = 16
    max_num_seqs: Count = 256
    max_num_batched_tokens: Count = 8192
    max_model_len: Count | None = None
    long_prefill_token_threshold: Annotated[int, Meta(ge=0)] = 0
    prefill_schedule_interval: Count = 1
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    engine_step_time: Annotated[float, Meta(ge=0, le=10)] | None = None
    """Seconds of a step with a part of a prompt, as this project's real engine cuts prompts."""


class CostConstants(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Costs of a step in seconds unless noted (docs/how-timing-works.md). Defaults cost nothing."""

    base: Seconds = 0.0
    """Fixed cost of every step."""
    weights: Seconds = 0.0
    """Reading all weights once, without experts."""
    expert_weights: Seconds = 0.0
    """Reading all experts once."""
    expert_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of experts that a token needs.

    A step reads the experts of all its tokens, chosen uniformly.
    """
    per_token: Seconds = 0.0
    """Computing one row of the matrix products."""
    p: Annotated[float, Meta(ge=1, le=100)] = 6.0
    """Exponent of the norm that combines reading and computing; higher values are closer to the
    maximum.
    """
    tile: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Weight of the missing rows of an unfinished tile of 128 rows."""
    spill: Seconds = 0.0
    """For each pair of rows: large steps cost more per row, as rows leave a CPU's caches."""
    products: Points = ()
    """Cost of all that depends on the tokens of a step alone, in place of `weights` to `spill`;
    in ascending order.
    """
    products_scale: Annotated[float, Meta(gt=0, le=100)] = 1.0
    """Factor of `products`."""
    outputs: Points = ()
    """Cost of the output layer, by sequences of the step; in ascending order."""
    decodes: Seconds = 0.0
    """Added to a step with decodes."""
    per_decode: Seconds = 0.0
    """For each decode."""
    prefills: Seconds = 0.0
    """Added to a step with prefill."""
    window: Annotated[int, Meta(ge=0, le=1 << 30)] = 0
    """Sliding window of attention in tokens, in `window-share` of the layers; 0 for no window."""
    window_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    per_context: Seconds = 0.0
    """For each token in the context of a decode."""
    per_attention: Seconds = 0.0
    """For each pair of tokens in the attention of a prefill."""
    per_sequence: Seconds = 0.0
    """For each sequence in the step."""
    mixed_context: Seconds = 0.0
    """Added to `per-context` in a step with prefill."""
    encoder: Seconds = 0.0
    """Least time of encoding the images and other items of a step."""
    per_embedding: Seconds = 0.0
    """For each embedding of an item."""
    per_embedding_pair: Seconds = 0.0
    """For each pair of embeddings of an item."""
    slowdown: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """Share of additional time for prefill on a hot device."""
    tau: Annotated[float, Meta(gt=0, le=100)] = 0.04
    """Time constant of the device's heating and cooling, in seconds."""
    wake: Seconds = 0.0
    """Added to a step on an idle device."""


class FrontCosts(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Costs of a server around its engine, in seconds."""

    front: Seconds = 0.0
    """From a request's arrival until the scheduler has the request."""
    front_per_token: Seconds = 0.0
    """Added to `front` for each token of the prompt."""
    out_per_stream: Seconds = 0.0
    """Delivery of one stream's token in a step."""


class SpeculationRates(
    Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """Speculative decoding: each step has one draft for each rate."""

    acceptance: Annotated[
        tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(min_length=1, max_length=64)
    ]
    """Chance that a draft is right if all earlier drafts were right, by position."""
    draft_slots: Annotated[int, Meta(ge=0, le=64)] = 0
    """Tokens of a step that each sequence takes besides its own: 1 with a draft model, all drafts
    with a draft model that drafts in parallel.
    """
    lookahead: Annotated[int, Meta(ge=0, le=1025)] = 0
    """Tokens for which each sequence holds blocks besides its own: all drafts with a drafter that
    has a KV cache, 0 with n-grams.
    """


class Profile(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Profile of an engine.

    `source`, `model`, `device`, `checked` and `errors` are for readers only.
    """

    source: str
    model: str
    device: str
    devices: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Accelerators of one engine."""
    kv_bytes_per_token: Annotated[float, Meta(gt=0)] | None = None
    """Keys and values of a token on all devices, which disaggregated prefill transfers."""
    weight_bytes: Annotated[float, Meta(ge=0)] = 0.0
    """Size of the model's weights, which a cold start reads; 0 if unknown."""
    checked: str = "not compared with any recording"
    """Result of a comparison with recordings."""
    errors: dict[str, str] = {}
    """Recorded run -> errors in %."""
    engine: EngineLimits
    cost: CostConstants
    front: FrontCosts = FrontCosts()
    speculation: SpeculationRates | None = None

    def settings(self) -> dict[str, object]:
        """Returns setting name -> value for the limits of the engine."""
        limits = msgspec.to_builtins(self.engine)
        return {
            SETTING_NAMES.get(name, name): value
            for name, value in limits.items()
            if value is not None
        }

    def with_drafts(self, drafts: "SyntheticDrafts | None") -> "Profile":
        """Returns a copy with these drafts; None keeps those of the profile."""
        if drafts is None:
            return self
        speculation = SpeculationRates(
            acceptance=drafts.acceptance, draft_slots=drafts.slots, lookahead=drafts.lookahead
        )
        return msgspec.structs.replace(self, speculation=speculation)


def read_profile(name_or_path: str) -> Profile:
    """Reads a shipped profile by name, or a file.

    Raises:
        ConfigError: The profile is missing or wrong; the message has the path and the reason.
    """
    from config.yaml_file import parse_yaml

    shipped = SHIPPED / f"{name_or_path}.yaml"
    path = name_or_path
    if "/" not in name_or_path and shipped.is_file():
        path = str(shipped)
    if not Path(path).is_file():
        names = ", ".join(shipped_profiles())
        raise ConfigError(f"profile {name_or_path}: must be a file or one of {names}")
    try:
        return msgspec.convert(parse_yaml(path), Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"profile {path}: {error}") from None


def shipped_profiles() -> list[str]:
    """Returns the names of the shipped profiles."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))
