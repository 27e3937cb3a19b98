"""Layers of a model: of one that has a name, or of a config.json."""

from pathlib import Path

import msgspec

from config.untrusted import UntrustedDataError
from vllm_facts.model_shape import FULL, LINEAR, SLIDING, ModelShape, read_model_config, text_fields

PRESETS = {
    "gpt-oss": ModelShape(layer_types=[SLIDING, FULL] * 12, sliding_window=128),
    "gemma-3": ModelShape(layer_types=([SLIDING] * 5 + [FULL]) * 8, sliding_window=1024),
    "qwen3-next": ModelShape(layer_types=([LINEAR] * 3 + [FULL]) * 12),
}
"""Layers of gpt-oss-20b, Gemma 3 12B and Qwen3-Next-80B-A3B."""


def read_layers(name: str) -> ModelShape:
    """Returns the layers of a preset, or of the config.json at a path.

    Raises:
        ValueError: the file cannot be read.
    """
    preset = PRESETS.get(name)
    if preset is not None:
        return preset
    try:
        return msgspec.convert(text_fields(read_model_config(Path(name))), ModelShape)
    except OSError as error:
        presets = ", ".join(PRESETS)
        raise ValueError(
            f"{name} is neither one of {presets} nor a readable file: {error.strerror}"
        ) from None
    except (UntrustedDataError, msgspec.ValidationError) as error:
        raise ValueError(f"{name}: {error}") from None
