"""Settings of the cost model."""

from typing import Annotated

from config.declaration import SIMULATED, Section, understood_by
from vllm_facts.version import RULE, playable_version


def read_version(text: str) -> str:
    """Returns the text of a version; an empty one stands for a default.

    Raises:
        ValueError: The version cannot be played; the message is the rule.
    """
    if text:
        playable_version(text)
    return text


class CostModelSettings(Section, frozen=True, kw_only=True):
    """Profile auto, which is computed from data sheets."""

    model_config: Annotated[str, SIMULATED] = ""
    """For the auto profile, the model's config.json or the folder that contains this file. If this
    setting is empty, the auto profile is that of the model setting."""
    profile_vllm_version: Annotated[str, understood_by(read_version, RULE)] = ""
    """vLLM version for the auto profile, such as 0.19. If this setting is empty, the version is the
    vllm-version setting. The constants were measured with the nearest version."""
