"""Storage formats of weights, from the `quantization_config` of a model."""

from collections.abc import Mapping

from msgspec.structs import replace

from app.extensions.costs.engine_options import BF16_BYTES
from app.extensions.costs.kernels import Format
from app.extensions.costs.shapes import Quantization
from app.extensions.costs.storage import StorageFormat
from config.declaration import ConfigError

WEIGHT_ONLY: Mapping[int, Format] = {4: "int4", 8: "int8"}
"""Bits of weights that are unpacked before they are multiplied -> format of the kernels."""
FP8 = StorageFormat(weight_bytes=1, in_8bit=True, kernels="fp8")
FORMATS: Mapping[str, StorageFormat] = {
    "fp8": FP8,
    "fbgemm_fp8": FP8,
    "modelopt": FP8,
    "modelopt FP8": FP8,
    "mxfp4": StorageFormat(weight_bytes=(4 + 8 / 32) / 8, kernels="mxfp4"),
    "modelopt NVFP4": StorageFormat(weight_bytes=(4 + 8 / 16) / 8, kernels="nvfp4"),
    "modelopt MIXED_PRECISION": StorageFormat(weight_bytes=(4 + 8 / 16) / 8, mixing_bytes=1),
    "mxfp8": StorageFormat(weight_bytes=1 + 1 / 32),
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
        kernels = WEIGHT_ONLY.get(config.bits)
        if config.group_size > 0:  # a group shares a scale of 2 bytes and a zero
            weight_bytes += (2 + config.bits / 8) / config.group_size
        return StorageFormat(
            weight_bytes=weight_bytes,
            kind=method,
            kernels=kernels,
            keeps_attention=config.keeps_attention,
            keeps_networks=config.keeps_networks,
        )
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
    elif activations is None:
        kernels = WEIGHT_ONLY.get(weights.num_bits)
    return StorageFormat(
        weight_bytes=weight_bytes,
        in_8bit=in_8bit,
        kind=f"compressed-tensors {weights.num_bits} bits",
        kernels=kernels,
        keeps_attention=config.keeps_attention,
        keeps_networks=config.keeps_networks,
    )
