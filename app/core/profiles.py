"""The profile that settings name: read from a file, or computed by an extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.core.built_in import present_extensions
from config import ConfigError, Settings
from config.settings import table_of
from config.sources import DEFAULT

if TYPE_CHECKING:
    from app.core.engine.profile import Profile

AUTO = "auto"
"""Name of the profile that is computed from a data sheet."""
VLLM_DEVICES = frozenset(("", "auto", "cpu", "cuda", "hpu", "neuron", "tpu", "xpu"))
"""Values of `--device` of earlier versions of vLLM; none is a data sheet."""


def add_limits(values: dict[str, object], source_names: dict[str, str]) -> None:
    """Adds the limits of the profile's engine, for settings without a source.

    Raises:
        ConfigError: As `chosen_profile`.
    """
    timing = values.get("timing", "")
    profile = values.get("profile", "")
    if timing == "requests" or not (timing or profile):
        return
    from app.core.engine.profile import DEFAULT_PROFILE

    profile_name = str(profile or DEFAULT_PROFILE)
    values["timing"] = "steps"
    values["profile"] = profile_name
    limits = {}
    for name in ("max-num-seqs", "max-num-batched-tokens", "block-size"):
        value = values.get(name)
        if source_names.get(name, DEFAULT) != DEFAULT and isinstance(value, int):
            limits[name.replace("-", "_")] = value
    core_names = table_of(Settings).by_name
    settings = Settings().changed(
        {name: value for name, value in values.items() if name in core_names}
    )
    for name, limit in chosen_profile(settings, limits).settings().items():
        if source_names.get(name, DEFAULT) == DEFAULT:
            values[name] = limit
            source_names[name] = f"profile {profile_name}"


def chosen_profile(settings: Settings, limits: Mapping[str, int] = {}) -> Profile:
    """Returns the profile that a server's settings select.

    `limits` are the fields of `EngineLimits` that differ from vLLM's defaults, for a profile that
    is computed.

    Raises:
        ConfigError: The settings or the profile are wrong, or an extension is missing.
    """
    steps = settings.steps
    is_computed_by = {
        "profile": steps.profile == AUTO,
        "device": steps.device not in VLLM_DEVICES,
        "model-config": steps.model_config != "",
        "vllm-version": steps.vllm_version != "",
    }
    names = [name for name, is_computed in is_computed_by.items() if is_computed]
    if not names:
        from app.core.engine.profile import read_profile  # and YAML

        return read_profile(steps.profile)
    for extension in present_extensions():
        profile = extension.profile(settings, limits)
        if profile is not None:
            return profile
    raise ConfigError(f"setting {names[0]}: needs the extension lab, which this server lacks")
