"""`--structured-outputs-config` as settings."""

from typing import Literal

from msgspec import Struct

from config.sources import FlagValues
from vllm_facts.kv_options import read_config


class StructuredOutputsConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`--structured-outputs-config`, with vLLM's defaults."""

    backend: Literal["auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"] = "auto"
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    reasoning_parser: str = ""
    reasoning_parser_plugin: str = ""
    enable_in_reasoning: bool = False


def structured_outputs_settings(text: str) -> FlagValues:
    """Returns the settings that `--structured-outputs-config` sets.

    Raises:
        ValueError: The value is not an object of this kind; the message has the wrong field.
    """
    config = read_config(text, StructuredOutputsConfig)
    settings: FlagValues = {"structured-output-in-reasoning": str(config.enable_in_reasoning)}
    if config.reasoning_parser:
        settings["reasoning-parser"] = config.reasoning_parser
    return settings
