"""Defaults of vLLM for a step of a server, which its code decides by device, version, and model.

`simulate`, `plan`, and `check` take them from here, so that all mean the same server. They are
those of vLLM's API server (`UsageContext.OPENAI_API_SERVER`), not of its class `LLM`. Start reading
at `step_defaults`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, convert

from vllm_facts.accelerator import GIB, DeviceMemory
from vllm_facts.version import Version, later_versions

LARGE_GIB = 70
"""Memory from which on vLLM computes longer steps."""
LARGEST_GIB = 160
"""Memory from which on it computes the longest steps, where the version has longer ones."""
SMALL_STEP = 2048
LARGE_STEP = 8192
FEW_SEQUENCES = 256
MANY_SEQUENCES = 1024
WHOLE_ITEM_TOKENS = 32 * (70 + 2 + 6)
"""Tokens of a video in Gemma 4: frames, each with its soft tokens, two marks, and a time."""
WHOLE_ITEM_MODELS = ("Gemma4ForConditionalGeneration",)
BEFORE: Sequence[tuple[str, str, object]] = (
    ("0.11", "has_whole_graphs", False),
    ("0.14", "async_scheduling", False),
    ("0.22", "holds_whole_items", False),
    ("0.26", "keeps_steps_in_flight", False),
    ("0.28", "largest_step", LARGE_STEP),
)
"""Version that changed a field of `StepDefaults`, the field, and its value in earlier versions."""


class StepDefaults(Struct, frozen=True, kw_only=True):
    """Defaults of a version; those of the newest one are the defaults of the fields."""

    largest_step: int = 16_384
    """Tokens of a step on the devices with the most memory."""
    async_scheduling: bool = True
    """The engine schedules a step while the one before it runs."""
    has_whole_graphs: bool = True
    """A CUDA graph of decodes includes attention, which the host launches otherwise."""
    holds_whole_items: bool = True
    """A step holds a video of a model that reads images as a whole."""
    keeps_steps_in_flight: bool = True
    """Layers with a window keep the tokens of all steps in flight."""

    def tokens(self, device: DeviceMemory, *, reads_whole_items: bool = False) -> int:
        """Returns the default of `max-num-batched-tokens`.

        `reads_whole_items` is True for a model that reads images and videos as a whole, on a server
        that does not leave them out.
        """
        tokens = SMALL_STEP
        if _is_large(device):
            tokens = LARGE_STEP
        if device.memory >= LARGEST_GIB * GIB:
            tokens = self.largest_step
        if reads_whole_items and self.holds_whole_items:
            tokens = max(tokens, WHOLE_ITEM_TOKENS)
        return tokens


def step_defaults(version: Version) -> StepDefaults:
    """Returns the defaults of a version that can be played."""
    later = later_versions(version)
    values = {field: value for changed_in, field, value in BEFORE if changed_in in later}
    return convert(values, StepDefaults)


def default_sequences(device: DeviceMemory) -> int:
    """Returns the default of `max-num-seqs`, before the limit of the tokens of a step."""
    if _is_large(device):
        return MANY_SEQUENCES
    return FEW_SEQUENCES


def has_whole_items(architecture: str, shared_layers: int) -> bool:
    """Returns whether images and videos of a model must be in one step.

    The larger models of Gemma 4 read them in both directions. The smaller ones, whose last
    `shared_layers` share a cache, do not.
    """
    return architecture in WHOLE_ITEM_MODELS and not shared_layers


def _is_large(device: DeviceMemory) -> bool:
    has_memory = device.memory >= LARGE_GIB * GIB and not device.is_unified
    return has_memory and "A100" not in device.name
