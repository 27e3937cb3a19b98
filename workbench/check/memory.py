"""Findings about the memory of a server. Start reading at `check_memory`."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_facts.accelerator import DeviceMemory
from vllm_facts.model_choice import Choice
from vllm_facts.option_numbers import PARALLEL
from workbench.check.findings import Finding, Place
from workbench.check.model import model_of_folder
from workbench.check.options import ReadOptions
from workbench.check.rules import finding
from workbench.engine.memory import (
    MemoryVerdict,
    ServerMemory,
    memory_verdicts,
    parallelism_verdict,
    shape_of,
)

DECIDING = (
    *PARALLEL,
    "max-model-len",
    "gpu-memory-utilization",
    "kv-cache-dtype",
    "quantization",
)
"""Options that decide about memory."""


def check_memory(
    options: ReadOptions,
    choice: Choice | None,
    *,
    device: DeviceMemory,
    model_config: str,
    place: Place,
) -> Iterator[Finding]:
    """Yields whether the model fits on the device."""
    if not options.unknown_options.isdisjoint(("*", *DECIDING)):
        unknown = ", ".join(f"--{name}" for name in DECIDING if name in options.unknown_options)
        message = f"memory not checked: {unknown or 'an option'} is not known"
        yield finding("M305", place, message)
        return
    shape = shape_of(choice, model_config)
    origin = ""
    if shape is None:
        model = model_of_folder(str(options.values.get("model", "")))
        shape = shape_of(model, "")
        if model is not None:
            origin = f"; the shape is that of {model.name}, by the name of the folder"
    server = ServerMemory(
        name=choice.name if choice is not None else model_config or "the model",
        shape=shape,
        values=options.values,
        version=options.version,
        device=device,
    )
    for verdict in memory_verdicts(server):
        has_origin = shape is not None and verdict.kind.compares_shape
        yield _finding_of(verdict, options, place, origin=origin if has_origin else "")


def check_parallelism(
    options: ReadOptions, choice: Choice | None, model_config: str, *, place: Place
) -> Iterator[Finding]:
    """Yields whether the parallel sizes divide the model, on any device."""
    if not options.unknown_options.isdisjoint(("*", *PARALLEL)):
        return
    shape = shape_of(choice, model_config)
    if shape is None:
        return
    verdict = parallelism_verdict(shape, options.values, options.version)
    if verdict is not None:
        yield _finding_of(verdict, options, place)


def _finding_of(
    verdict: MemoryVerdict, options: ReadOptions, place: Place, *, origin: str = ""
) -> Finding:
    """Returns a verdict at the place of its option; `place` is that of the command line."""
    if verdict.option:
        place = options.place_of(verdict.option, place)
    return finding(verdict.kind.value, place, verdict.message + origin, fix=verdict.fix)
