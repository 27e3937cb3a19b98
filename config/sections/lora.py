"""Adapters that are served beside the base model."""

from dataclasses import dataclass

from config.fields import setting
from config.kinds import Objects
from config.rules import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Adapters that are served beside the base model."""

    lora_modules: Objects = setting(
        (),
        help="Adapters from the start, each as name=path or as a JSON object with name, path and "
        "base_model_name.",
    )
    max_loras: int = setting(
        1, unit="adapters", help="Adapters that may run at the same time.", rule=at_least(1)
    )
    max_cpu_loras: int | None = setting(
        None,
        unit="adapters",
        help="Adapters that may be kept loaded; at least max-loras. Empty is no limit.",
        rule=at_least(1),
    )
    enable_lora: bool = setting(
        False, help="Tell of adapters in the metrics even when none is there at the start."
    )
    allow_runtime_lora_updating: bool = setting(
        False,
        env=("VLLM_ALLOW_RUNTIME_LORA_UPDATING",),
        help="Serve the routes that load and unload adapters.",
    )
