"""A small LLM engine for CPUs (and CUDA and MPS, as far as torch goes).

It shares its scheduler with the simulation.

    from app.llm import LLM, SamplingParams

Optional: the engine needs the extra `engine`. Other packages import only `errors` and
`model_files`, in `app.extensions.llm.real_engine`. Each name of the table is imported at its first
use, and torch when a model is loaded.
"""

from importlib import import_module
from typing import Final

CLASS_PATHS: Final = {
    "LLM": "llm.LLM",
    "LLMEngine": "llm.LLM",
    "AsyncLLM": "async_llm.AsyncLLM",
    "AsyncLLMEngine": "async_llm.AsyncLLM",
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
__all__ = list(CLASS_PATHS)


def __getattr__(name: str) -> type:
    if name not in CLASS_PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, class_name = CLASS_PATHS[name].partition(".")
    library_class: type = getattr(import_module(f"{__package__}.{module}"), class_name)
    return library_class
