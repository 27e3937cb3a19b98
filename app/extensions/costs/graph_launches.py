"""The host's launches between the CUDA graphs of a layer, before graphs included attention."""

from collections.abc import Mapping

from app.extensions.costs.shapes import CostShape
from vllm_facts.devices import GENERATIONS
from vllm_facts.model_shape import family_of
from vllm_facts.step_defaults import StepDefaults

SINK_FAMILIES = frozenset(("GptOss",))
"""Families whose attention has sinks, which FlashAttention 2 does not compute."""
SINK_KERNELS: Mapping[str, str] = {"hopper": "FlashAttention 3", "blackwell": "TensorRT"}
"""Generation -> its kernels with sinks; all other devices have Triton's."""
TRITON_LAYER_US = 235.0
"""Least time of a layer with Triton's attention outside of the graphs.

Steps of gpt-oss with one to four sequences take as long on A100, whatever the experts read:
8.0 ms in 24 layers (vllm-project/vllm#22428) and 11.1 ms in 36 (#22331).
"""
TRITON_COMPUTE = 0.15
"""Share of the arithmetic in prompts with Triton's attention, from prompts of 32,000 tokens of
gpt-oss on A100 (gpustack's performance lab, vLLM 0.11).
"""


def has_triton_sinks(shape: CostShape, device_name: str) -> bool:
    """Returns whether Triton computes the attention of a model with sinks on a device."""
    if family_of(shape.architectures[0]) not in SINK_FAMILIES:
        return False
    return GENERATIONS.get(device_name) not in SINK_KERNELS


def least_layer_us(shape: CostShape, device_name: str, defaults: StepDefaults) -> float | None:
    """Returns the least time of a layer in any step; None where the host does not limit steps."""
    if defaults.has_whole_graphs or not has_triton_sinks(shape, device_name):
        return None
    return TRITON_LAYER_US
