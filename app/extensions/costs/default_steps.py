"""Defaults of vLLM for a step of a server, which depend on the device and the version.

`simulate` and `check` take them from here, so that both mean the same server.
"""

from app.extensions.costs.version_rules import StepDefaults
from vllm_facts.device import GIB, Device
from vllm_facts.owned_device import OwnedDevice

LARGE_GIB = 70
"""Memory from which on vLLM computes longer steps."""
LARGEST_GIB = 160
"""Memory from which on it computes the longest steps, where the version has longer ones."""
SMALL_STEP = 2048
LARGE_STEP = 8192
FEW_SEQUENCES = 256
MANY_SEQUENCES = 1024


def default_step_tokens(device: Device | OwnedDevice, defaults: StepDefaults) -> int:
    """Returns the default of `max-num-batched-tokens` in a version with these `defaults`."""
    if device.memory >= LARGEST_GIB * GIB:
        return defaults.largest_step
    return LARGE_STEP if _is_large(device) else SMALL_STEP


def default_sequences(device: Device | OwnedDevice) -> int:
    """Returns the default of `max-num-seqs`, before the limit of the tokens of a step."""
    return MANY_SEQUENCES if _is_large(device) else FEW_SEQUENCES


def _is_large(device: Device | OwnedDevice) -> bool:
    has_memory = device.memory >= LARGE_GIB * GIB and not device.is_unified
    return has_memory and "A100" not in device.name
