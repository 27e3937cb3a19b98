"""Settings of the adapters in memory."""

from typing import Annotated

from config.declaration import SIMULATED, Section


class AdapterSettings(Section, frozen=True, kw_only=True):
    """Reports about the LoRA adapters in memory."""

    lora_residency_metrics: Annotated[bool, SIMULATED] = False
    """Add metrics that show which adapters are in GPU memory and in CPU memory, as in vLLM versions
    after 0.32."""
