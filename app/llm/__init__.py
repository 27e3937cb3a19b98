"""A small LLM engine for CPUs (and CUDA and MPS, as far as torch goes), on the scheduler of the
simulation.

    from app.llm import LLM, SamplingParams

Optional: the engine needs requirements-engine.txt. Other packages import only `errors` and
`model_files`, in `app.wiring.real_engine`. Each name of the table is imported at its first use,
torch when a model is loaded.
"""

from importlib import import_module
from typing import Final

NAMES: Final = {
    "LLM": "llm.LLM",
    "LLMEngine": "llm.LLM",
    "AsyncLLM": "llm.AsyncLLM",
    "AsyncLLMEngine": "llm.AsyncLLM",
    "SamplingParams": "sampling_params.SamplingParams",
    "StructuredOutputsParams": "sampling_params.StructuredOutputsParams",
    "Priority": "sampling_params.Priority",
    "RequestPriority": "sampling_params.Priority",
    "DeviceManager": "device.DeviceManager",
    "ModelLoadError": "errors.ModelLoadError",
    "GenerationError": "errors.LLMError",
    "InvalidParametersError": "errors.RequestError",
    "QueueFullError": "errors.QueueFull",
}
"""Places of the library's classes, by the names of vLLM and of nano-qwen3-serving."""
__all__ = list(NAMES)


def __getattr__(name: str) -> type:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = NAMES[name].partition(".")
    found: type = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found
