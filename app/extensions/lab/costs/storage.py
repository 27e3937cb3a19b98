"""Storage formats of weights, from the `quantization_config` of a model."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from app.extensions.lab.costs.engine_options import BF16_BYTES
from app.extensions.lab.costs.kernels import Format
from app.extensions.lab.costs.shapes import ModelShape, Quantization
from config.declaration import ConfigError

MXFP4_ROWS = 256
"""Experts in MXFP4 are padded to a multiple of this number of rows."""
MARLIN_ROWS = 128
"""The same with Marlin's kernels."""
MARLIN_COLUMNS = 256
"""Numbers of a token are padded to a multiple of this with Marlin's kernels."""


class StorageFormat(Struct, frozen=True, kw_only=True):
    """Storage format of weights, and precision of products."""

    weight_bytes: float
    """Bytes of one weight of the projections, with its share of scales."""
    in_8bit: bool = False
    """Products are in 8 bits, if the device supports them."""
    kind: str = "bf16"
    kernels: Format | None = None
    """Format of the kernels that compute with these weights; None without constants for them."""
    for_marlin: bool = False
    """Experts in MXFP4 have the layout of Marlin's kernels."""
    keeps_attention: bool = False
    """The projections of attention are in 16 bits."""
    keeps_networks: bool = False
    """Dense networks and shared experts are in 16 bits."""

    @property
    def attention_kernels(self) -> Format | None:
        """Format of the kernels of attention's projections.

        In a model in MXFP4 only the experts have this format.
        """
        if self.keeps_attention or self.kernels == "mxfp4":
            return "bf16"
        return self.kernels

    @property
    def network_kernels(self) -> Format | None:
        """Format of the kernels of dense networks and shared experts."""
        if self.keeps_networks or self.kernels == "mxfp4":
            return "bf16"
        return self.kernels

    def model_bytes(self, shape: ModelShape) -> float:
        """Returns the bytes of all weights."""
        return self.shared_bytes(shape) + self.expert_bytes(shape)

    def shared_bytes(self, shape: ModelShape) -> float:
        """Returns the bytes of the weights that every token needs.

        In a model in MXFP4 only the experts have 4 bits.
        """
        mixing_bytes = self.weight_bytes
        network_bytes = self.weight_bytes
        if self.keeps_attention:
            mixing_bytes = BF16_BYTES
        if self.keeps_networks:
            network_bytes = BF16_BYTES
        if self.kernels == "mxfp4" and shape.num_experts:
            mixing_bytes = BF16_BYTES
            network_bytes = BF16_BYTES
        return (
            BF16_BYTES * shape.table_weights
            + mixing_bytes * shape.mixing_weights
            + network_bytes * shape.network_weights
        )

    def expert_bytes(self, shape: ModelShape) -> float:
        """Returns the bytes of all experts, 0 for a dense model."""
        if not shape.num_experts:
            return 0.0
        _, expert = shape.weights()
        padding = 1.0
        if self.kernels == "mxfp4":
            padding = _padding(shape.moe_intermediate_size, MXFP4_ROWS)
            if self.for_marlin:
                padding = _padding(shape.moe_intermediate_size, MARLIN_ROWS)
                padding *= _padding(shape.hidden_size, MARLIN_COLUMNS)
        return self.weight_bytes * expert * padding * shape.num_experts


def _padding(size: int, multiple: int) -> float:
    """Returns the factor by which a size grows to a multiple."""
    return -(-size // multiple) * multiple / size


FP8 = StorageFormat(weight_bytes=1, in_8bit=True, kernels="fp8")
FORMATS: Mapping[str, StorageFormat] = {
    "fp8": FP8,
    "fbgemm_fp8": FP8,
    "modelopt": FP8,
    "modelopt FP8": FP8,
    "mxfp4": StorageFormat(weight_bytes=(4 + 8 / 32) / 8, kernels="mxfp4"),
    "modelopt NVFP4": StorageFormat(weight_bytes=(4 + 8 / 16) / 8, kernels="nvfp4"),
    "bitsandbytes": StorageFormat(weight_bytes=(4 + 16 / 64) / 8),
}
"""Method and algorithm -> format."""


def read_storage(config: Quantization | None, origin: str) -> StorageFormat:
    """Returns the storage format.

    Raises:
        ConfigError: The method is unknown; the message begins with `origin`.
    """
    if config is None:
        return StorageFormat(weight_bytes=BF16_BYTES, kernels="bf16")
    method = config.quant_method.lower().removesuffix("_marlin")
    kind = f"{method} {config.quant_algo}".strip()
    if kind in FORMATS:
        storage = replace(
            FORMATS[kind],
            kind=kind,
            keeps_attention=config.keeps_attention,
            keeps_networks=config.keeps_networks,
        )
        if storage.kernels == "fp8" and config.weight_block_size:
            return replace(storage, kernels="fp8-block")
        return storage
    if method in ("awq", "gptq"):
        weight_bytes = config.bits / 8
        if config.group_size > 0:  # a group shares a scale of 2 bytes and a zero
            weight_bytes += (2 + config.bits / 8) / config.group_size
        return StorageFormat(weight_bytes=weight_bytes, kind=method)
    if method == "compressed-tensors" and config.config_groups:
        return _compressed_tensors(config)
    methods = f"{', '.join(FORMATS)}, awq, gptq, compressed-tensors with its groups"
    raise ConfigError(
        f"{origin}: quantization_config: quant_method {kind} must be one of {methods}"
    )


def _compressed_tensors(config: Quantization) -> StorageFormat:
    group = next(iter(config.config_groups.values()))
    weights = group.weights
    activations = group.input_activations
    weight_bytes = weights.num_bits / 8
    if weights.group_size and weights.group_size > 0:  # a group shares a scale of 2 bytes
        weight_bytes += 2 / weights.group_size
    in_8bit = activations is not None and activations.num_bits == 8
    kernels: Format | None = None
    if in_8bit and weights.num_bits == 8:
        kernels = "fp8"
    elif weights.num_bits == 4 and config.keeps_attention and config.keeps_networks:
        kernels = "int4"  # there are kernels of experts with 4-bit integers alone
    return StorageFormat(
        weight_bytes=weight_bytes,
        in_8bit=in_8bit,
        kind=f"compressed-tensors {weights.num_bits} bits",
        kernels=kernels,
        keeps_attention=config.keeps_attention,
        keeps_networks=config.keeps_networks,
    )
