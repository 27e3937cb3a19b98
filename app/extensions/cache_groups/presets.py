"""Layers of a model: of one that has a name, or of a config.json."""

from app.extensions.cache_groups.layers import FULL, LINEAR, SLIDING, LayerConfig, ModelConfig
from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted

CONFIG_LIMIT_BYTES = 4 << 20
PRESETS = {
    "gpt-oss": LayerConfig([SLIDING, FULL] * 12, 128),
    "gemma-3": LayerConfig(([SLIDING] * 5 + [FULL]) * 8, 1024),
    "qwen3-next": LayerConfig(([LINEAR] * 3 + [FULL]) * 12),
}
"""Layers of gpt-oss-20b, Gemma 3 12B and Qwen3-Next-80B-A3B."""


def read_layers(name: str) -> LayerConfig:
    """Returns the layers of a preset, or of the config.json at a path.

    Raises:
        ValueError: the file cannot be read.
    """
    preset = PRESETS.get(name)
    if preset is not None:
        return preset
    try:
        content = read_whole(name, CONFIG_LIMIT_BYTES)
        config = decode_untrusted(content, type=ModelConfig)
    except OSError as error:
        presets = ", ".join(PRESETS)
        raise ValueError(
            f"{name} is neither one of {presets} nor a readable file: {error.strerror}"
        ) from None
    except UntrustedDataError as error:
        raise ValueError(f"{name}: {error}") from None
    return config.text_config or config
