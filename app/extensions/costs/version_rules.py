"""Differences between versions of vLLM in memory and the KV cache. Defaults are the newest version.

`app.extensions.costs.releases` has the values of older versions. Start reading at `rules_of`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from app.core.versions.chain import played_version, simulated_version
from app.extensions.costs.settings import CostModelSettings
from config.declaration import ConfigError
from vllm_facts.step_defaults import step_defaults
from vllm_facts.version import DEFAULT, Version, parse_version, playable_version
from vllm_facts.version_order import nearest_minor

if TYPE_CHECKING:
    from config import Settings

R = TypeVar("R", bound=Struct)
MEASURED = Path(__file__).with_name("measured_versions.json")
"""Versions whose servers or logs were compared."""


class MemoryUse(Struct, frozen=True, kw_only=True):
    """Memory of a device that vLLM takes, from its logs of public servers."""

    utilization: float = 0.92
    """Default of `gpu-memory-utilization`."""
    logit_bytes: float = 14.9
    """Bytes of the sampler for each logit of `max-num-seqs` sequences."""
    outside_gib: float = 0.25
    """Memory outside PyTorch, of a single device."""
    outside_pair_gib: float = 2.1
    """Memory outside PyTorch, of each of two devices, which communicate."""
    outside_many_gib: float = 2.1
    """Memory outside PyTorch, of each of more devices, whose switch sums for them."""
    graphs_gib: float = 0.7
    """CUDA graphs of all sizes of a batch."""
    expert_copies: int = 2
    """Copies of the activation of experts."""
    encoder_gib: float = 1.75
    """The step of an encoder of images of any size."""
    has_marlin_on_hopper: bool = True
    """Experts in MXFP4 have the layout of Marlin's kernels on Hopper, not of Triton's."""
    packed_experts_gib: float = 0.0
    """Memory that experts in NVFP4 take beside their weights."""


class CacheRules(Struct, frozen=True, kw_only=True):
    """Rules of the blocks of the KV cache."""

    keeps_state_ends: bool = True
    """`--enable-prefix-caching` keeps states at the ends of blocks."""
    logs_by_group: bool = False
    """The size in the log divides the blocks evenly among the groups."""


def version_of(text: str) -> Version:
    """Returns the version of an option; the default version for an empty text.

    Raises:
        ConfigError: The version is unknown.
    """
    try:
        return playable_version(text or DEFAULT)
    except ValueError as error:
        raise ConfigError(f"vllm-version {text!r}: {error}") from None


def profile_version(settings: Settings) -> str:
    """Returns the version of vLLM whose costs and memory a server has."""
    section = settings.section(CostModelSettings)
    return section.profile_vllm_version or simulated_version(settings.api).version.name


def rules_of(text: str, kind: type[R]) -> R:
    """Returns the rules of a version, of the default version for an empty text.

    Raises:
        ConfigError: The version is unknown.
    """
    return played_version(version_of(text).release).rules(kind)


@cache
def is_asynchronous(minor: int) -> bool:
    """Returns whether a version 0.`minor` overlaps its steps, as tables of measurements name it."""
    return step_defaults(version_of(f"0.{minor}")).async_scheduling


def nearest_measured(text: str) -> tuple[int, str]:
    """Returns the minor number of the nearest version that was measured.

    The second value is a text where this is another version than that of `text`.

    Raises:
        ConfigError: The version is unknown.
    """
    minor = version_of(text).minor
    measured = _measured_minors()
    nearest = nearest_minor(minor, measured)
    assert nearest is not None
    if not text or nearest == minor:
        return nearest, ""
    reason = "the nearest that was measured"
    if nearest_minor(minor, measured, is_earlier=True) == newest_measured():
        reason = "the newest known version"
    return nearest, f"vLLM {text} is taken for 0.{nearest}, {reason}"


@cache
def newest_measured() -> int:
    """Returns the minor number of the newest version that was measured."""
    return max(_measured_minors())


@cache
def _measured_minors() -> tuple[int, ...]:
    names = json.loads(MEASURED.read_bytes())
    return tuple(parse_version(name).minor for name in names)
