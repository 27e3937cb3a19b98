"""Settings of the cost model."""

from typing import Annotated

from msgspec import Meta

from config.declaration import About, Section


class CostModelSettings(Section, frozen=True, kw_only=True):
    """Profile auto, which is computed from data sheets."""

    model_config: Annotated[str, About(simulated=True, path=True)] = ""
    """For the auto profile, the model's config.json or the folder that contains this file. If this
    setting is empty, the auto profile is that of the model setting."""
    profile_vllm_version: Annotated[str, Meta(pattern=r"^(\d+\.\d+[\w.+-]*)?$")] = ""
    """vLLM version for the auto profile. In vLLM versions up to 0.13, the engine waits for each
    step to end before it schedules the next step. If this setting is empty or later than 0.28, the
    newest known version is used."""
