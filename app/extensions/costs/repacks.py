"""Shapes of models that the table of shapes lacks: copies, and repacks in another format.

The name of a repack has the name of its model and a format, such as Qwen/Qwen3-14B-AWQ. Its shape
is that of the model, and its `quantization_config` that of most repacks in the format.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from app.extensions.costs.shapes import memory_shape
from config.declaration import ConfigError, UsageError
from vllm_facts.known_models import config_of, full_name, known_models
from vllm_facts.models import Model, find_model

KEPT_ATTENTION = ("*.self_attn*", "*.linear_attn*")
"""Modules that stay in 16 bits in repacks of a model with experts and states in 4 bits."""
FOUR_BITS = frozenset(("awq", "gptq", "int4", "w4a16", "quantized", "nvfp4", "fp4"))
REPACKS: Mapping[str, Mapping[str, object] | None] = {
    **dict.fromkeys(
        ("awq", "gptq", "int4", "w4a16", "quantized"),
        {"quant_method": "awq", "bits": 4, "group_size": 128},
    ),
    **dict.fromkeys(
        ("int8", "w8a8", "w8a16"), {"quant_method": "gptq", "bits": 8, "group_size": 128}
    ),
    "fp8": {"quant_method": "fp8"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "mxfp4": {"quant_method": "mxfp4"},
    "mxfp8": {"quant_method": "mxfp8"},
    "bnb": {"quant_method": "bitsandbytes"},
    "bf16": None,
}
"""Format in the name of a repack -> its `quantization_config`."""
EIGHT_BIT_ACTIVATIONS = "w8a8"
"""Part of the names of repacks that multiply int8 weights by int8 activations."""
W8A8: Mapping[str, object] = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "weights": {"num_bits": 8, "type": "int"},
            "input_activations": {"num_bits": 8, "type": "int"},
        }
    },
}


def configs_of(
    name: str, facts: Model, known: Mapping[str, Mapping[str, object]]
) -> Iterator[object]:
    """Yields contents of `config.json` for a model that is not in the table, the best one first.

    Args:
        name: Its name.
        facts: Its facts.
        known: Table of shapes, by the names of models.
    """
    if facts.copy_of in known:
        yield known[facts.copy_of]
    fields: Mapping[str, object] = {}
    if facts.shape:
        fields = {"architectures": [facts.architecture], **facts.shape}
        if not facts.format:
            yield fields
    if not facts.base or facts.format not in REPACKS:
        return
    quantization = REPACKS[facts.format]
    if facts.format == "int8" and EIGHT_BIT_ACTIVATIONS in name.lower():
        quantization = W8A8
    if facts.base in known:
        base = known[facts.base]
        if quantization and facts.format in FOUR_BITS and _has_experts_and_states(base):
            quantization = {**quantization, "ignore": KEPT_ATTENTION}
        yield {**base, "quantization_config": quantization}
    if fields:
        yield {**fields, "quantization_config": quantization}


def find_config(model: str) -> object:
    """Returns the content of a `config.json`; `model` is a name, a file or a folder.

    A copy or a repack of a known model has its shape, as for `check`.

    Raises:
        ConfigError: The model is unknown, the file cannot be read, or no kernels have the repack's
            format.
    """
    if not os.path.exists(model) and full_name(model) is None:
        config = _copied_config(model)
        if config is not None:
            return config
    return config_of(model)


def _copied_config(model: str) -> object | None:
    """Returns the best shape of a copy or a repack; None for a name that is neither.

    Raises:
        ConfigError: Several models have the name, or no kernels have the repack's format.
    """
    try:
        found = find_model(model)
    except UsageError as error:
        raise ConfigError(str(error)) from None
    if found is None:
        return None
    name, facts = found
    for config in configs_of(name, facts, known_models()):
        with suppress(ConfigError):
            memory_shape(config)
            return config
    if facts.base and facts.format not in REPACKS:
        raise ConfigError(
            f"model {model}: the cost of kernels for {facts.format} is unknown; ask for"
            f" {facts.base} in another format, or record a server and calibrate a profile"
        )
    return None


def _has_experts_and_states(config: object) -> bool:
    shape = memory_shape(config)
    return bool(shape.num_experts) and shape.recurrent is not None
