"""Overheads of engines on devices without constants of kernels, from measured servers."""

from collections.abc import Mapping

from app.extensions.costs.overhead import SheetOverhead

NO_OVERHEAD = SheetOverhead()
MEASURED_OVERHEADS: Mapping[str, SheetOverhead] = {
    "MI300X 192 GB": SheetOverhead(
        layer_s=43e-6,
        expert_layer_s=250e-6,
        sequence_s=85e-6,
        checked="six runs of Llama 70B in FP8 on 8 devices, vLLM 0.11, gave its overheads and are"
        " within 8 % (TPOT)",
    )
}
"""By the name of the device."""
