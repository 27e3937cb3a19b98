"""The profile that settings name: read from a file, or computed by an extension."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from app.core.built_in import present_extensions
from config import ConfigError, Settings

if TYPE_CHECKING:
    from app.core.engine.profile import Profile

AUTO = "auto"
"""Name of the profile that the extension `costs` computes."""
VLLM_DEVICES = frozenset(("", "auto", "cpu", "cuda", "hpu", "neuron", "tpu", "xpu"))
"""Values of `--device` of earlier versions of vLLM; none is a data sheet."""


def chosen_profile(settings: Settings, decided: Collection[str]) -> Profile:
    """Returns the profile that a server's settings select.

    `decided` are the names of the settings that a computed profile must follow: while settings are
    loaded, only settings with a source, and afterwards all settings.

    Raises:
        ConfigError: The settings or the profile are wrong, or an extension is missing.
    """
    for extension in present_extensions():
        profile = extension.profile(settings, decided)
        if profile is not None:
            return profile
    steps = settings.steps
    needs_costs = {"profile": steps.profile == AUTO, "device": steps.device not in VLLM_DEVICES}
    for name, is_needed in needs_costs.items():
        if is_needed:
            raise ConfigError(
                f"setting {name}: requires the extension 'costs', which this server does not have"
            )
    from app.core.engine.profile import read_profile  # imports YAML

    return read_profile(steps.profile)
