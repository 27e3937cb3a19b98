"""Cost and memory of LoRA adapters.

A step with adapters runs two small products beside each packed product of a layer, and reads the
weights of each adapter in the step. An adapter covers all products of a dense model, and the
attention of a mixture. Loading an adapter into a slot takes no time. No error is known.
"""

from msgspec import Struct

from app.extensions.costs.engine_options import BF16_BYTES
from app.extensions.costs.kernels import US
from app.extensions.costs.shapes import CostShape
from vllm_facts.accelerator import Device

KERNEL_US = 4.0
"""Fixed time of a product, as of other products in 16 bits."""
PRODUCTS = 8
"""Products of a layer, in and out of the rank, for four packed products."""
BANDWIDTH_SHARE = 0.8


class LoraCosts(Struct, frozen=True, kw_only=True):
    """Costs of adapters in a step, and their size."""

    step_s: float
    """Time of a step with any adapter."""
    adapter_s: float
    """Time for each adapter of the step."""
    adapter_bytes: float
    """Bytes of an adapter on all devices."""


def lora_costs(shape: CostShape, device: Device, rank: int, devices: int) -> LoraCosts:
    """Returns the costs of adapters of a rank on `devices` devices that share each layer."""
    width = shape.hidden_size
    query_width = shape.num_attention_heads * shape.head_dim
    key_width = shape.num_key_value_heads * shape.head_dim
    widths = 2 * (width + query_width) + 2 * (width + key_width)
    products = PRODUCTS
    if shape.num_experts:
        products = PRODUCTS // 2
    else:
        widths += shape.matrices * (width + shape.intermediate_size)
    size = BF16_BYTES * rank * widths * shape.num_hidden_layers
    return LoraCosts(
        step_s=shape.num_hidden_layers * products * KERNEL_US * US,
        adapter_s=size / devices / (device.bandwidth * BANDWIDTH_SHARE),
        adapter_bytes=size,
    )
