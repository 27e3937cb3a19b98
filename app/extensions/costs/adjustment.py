"""A correction of the sum over kernels, for one version of the engine."""

from msgspec import Struct


class Adjustment(Struct, frozen=True, kw_only=True):
    """Correction for one version, device, format and kind of model."""

    device: str
    weights: str
    has_experts: bool
    version: int
    """Minor number of vLLM's version."""
    launch_us: float = 0.0
    """Added to each layer of each step."""
    decode: float = 1.0
    """Factor of the layers of small steps."""
    prefill: float = 1.0
    """Factor of the layers of large steps."""
    prompt_launch_us: float | None = None
    """Least time of a layer in a step of prompts without a CUDA graph; None where not fitted."""
    step_launch_us: float | None = None
    """Least time of a layer in any step, of servers that launch each kernel; None with graphs."""
    front_ms: float = 0.0
    """Added to the time until the scheduler has a request."""
    cells: int = 0
    """Measured cells that the correction was fitted to."""
