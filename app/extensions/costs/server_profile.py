"""The computed profile of a server."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from app.core.profiles import AUTO, VLLM_DEVICES
from app.extensions.costs.settings import CostModelSettings
from config.declaration import ConfigError
from config.sections.model import ModelSettings

if TYPE_CHECKING:
    from app.core.engine.profile import Profile
    from config import Settings

TINY_MODEL = ModelSettings().model
"""The default model, which has no shape."""
ENGINE_LIMITS = ("max-num-seqs", "max-num-batched-tokens", "block-size")
"""Settings that decide how much memory an engine needs beside the weights, and for a block."""


def server_profile(settings: Settings, decided: Collection[str]) -> Profile | None:
    """Returns the profile of a model's config.json and a device's data sheet.

    Returns None if no setting asks for a computed profile. `decided` are the names of the settings
    that the profile must follow.

    Raises:
        ConfigError: A setting or a file is wrong or missing.
    """
    steps = settings.steps
    section = settings.section(CostModelSettings)
    device = None if steps.device in VLLM_DEVICES else steps.device
    model_config = section.model_config or None
    if steps.profile == AUTO and model_config is None and settings.model.model != TINY_MODEL:
        model_config = settings.model.model
    if steps.profile != AUTO and not (device or model_config or section.profile_vllm_version):
        return None
    if section.profile_vllm_version and steps.profile != AUTO:
        raise ConfigError(f"profile {steps.profile}: profile-vllm-version requires profile {AUTO}")
    # Few servers compute a profile.
    from app.extensions.costs.datasheet import profile_of
    from app.extensions.costs.engine_options import EngineOptions
    from app.extensions.costs.version_rules import profile_version

    limits = {}
    for name in ENGINE_LIMITS:
        if name in decided:
            limits[name.replace("-", "_")] = settings.table.by_name[name].value(settings)
    return profile_of(
        steps.profile,
        device,
        model_config,
        EngineOptions(
            tensor_parallel_size=settings.model.tensor_parallel_size,
            vllm_version=profile_version(settings),
        ),
        limits=limits,
    )
