"""Compares a model and its context with the memory of devices. Start reading at `check_memory`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from msgspec.structs import replace

from app.extensions.costs.shapes import CostShape, Quantization
from app.extensions.costs.storage_formats import read_storage
from config.declaration import ConfigError
from vllm_facts.device import GIB
from vllm_facts.model_choice import Choice
from vllm_facts.owned_device import AMD, OwnedDevice
from workbench.check.combinations import PARALLEL, number_of, parallel_devices
from workbench.check.findings import Finding, Place
from workbench.check.fit import Fit, engine_options, estimate, shape_of
from workbench.check.model import model_of_folder
from workbench.check.options import ReadOptions
from workbench.check.rules import finding

MAX_TENSOR_PARALLEL = 16
AMPERE = 8.0
TURING = 7.5
_PARAMETERS = re.compile(r"(?:^|[-_])(\d{1,4}(?:\.\d{1,3})?)([bBtT])(?=[-_.]|$)")
PLAIN_BYTES = (1.0, 2.0)
"""Least and most bytes of a parameter without a format in the name."""
NAMED_BYTES = {
    **dict.fromkeys(("bf16", "fp16"), 2.0),
    **dict.fromkeys(("fp8", "int8", "w8a8", "w8a16", "mxfp8"), 1.0),
    **dict.fromkeys(("fp4", "int4", "awq", "gptq", "4bit", "w4a16"), 0.53),
}
"""Format in a name -> bytes of a parameter."""
NEEDS_AMPERE = frozenset(("fp8", "fbgemm_fp8", "modelopt", "mxfp4", "compressed-tensors"))
NVIDIA_ONLY = frozenset(("modelopt", "modelopt_fp4", "nvfp4"))

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
    device: OwnedDevice,
    model_config: str,
    place: Place,
) -> Iterator[Finding]:
    """Yields whether the model fits on the device."""
    name = choice.name if choice is not None else model_config or "the model"
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
    if shape is None:
        yield _by_name(name, options, device=device, place=place)
        return
    yield from _formats(options, shape, device, place)
    if number_of(options.values, "cpu-offload-gb"):
        message = "memory not checked: --cpu-offload-gb keeps weights in the memory of the host"
        yield finding("M305", place, message)
        return
    try:
        fit = estimate(shape, options.values, device, options.version)
    except ConfigError as error:
        yield _flaw(str(error), options, place)
        return
    verdict = _verdict(fit, options, shape, device=device, place=place)
    yield replace(verdict, message=verdict.message + origin)


def check_parallelism(
    options: ReadOptions, choice: Choice | None, model_config: str, *, place: Place
) -> Iterator[Finding]:
    """Yields whether the parallel sizes divide the model, on any device."""
    if not options.unknown_options.isdisjoint(("*", *PARALLEL)):
        return
    shape = shape_of(choice, model_config)
    if shape is None:
        return
    try:
        engine_options(options.values, options.version).check(shape, "the model")
    except ConfigError as error:
        flaw = _flaw(str(error), options, place)
        if flaw.code == "C202":
            yield flaw


def _by_name(name: str, options: ReadOptions, *, device: OwnedDevice, place: Place) -> Finding:
    """Compares the memory with weights of the number of parameters in a name.

    Only weights that cannot fit are an error: without a format in the name, they can have 8 bits.
    """
    advice = "give its config.json with --model-config"
    message = f"memory not checked: the shape of {name} is not known"
    parameters = parameters_of(name)
    if not parameters or "cpu-offload-gb" in options.values:
        return finding("M305", place, message, fix=advice)
    count = parallel_devices(options.values)
    smallest, largest = (parameters * size / count / GIB for size in named_bytes(name))
    memory = device.memory / GIB
    if smallest > memory:
        text = f"weights of at least {smallest:.0f} GiB, by the name of {name}, do not fit"
        return finding("M301", place, f"{text} on {device.name}", fix="use more devices")
    weights = (
        f"{largest:.0f} GiB" if smallest == largest else f"{smallest:.0f} to {largest:.0f} GiB"
    )
    text = f"the name stands for weights of {weights} in {memory:.0f} GiB on {device.name}"
    return finding("M305", place, f"{message}; {text}", fix=advice)


def smallest_weights(options: ReadOptions, choice: Choice | None) -> float:
    """Returns the bytes of a model's weights, at least; 0 for an unknown model."""
    shape = shape_of(choice, "")
    if shape is not None:
        with suppress(ConfigError):
            engine = engine_options(options.values, options.version)
            quantization = engine.weight_quantization(shape.quantization_config, "the model")
            storage = read_storage(quantization, "the model")
            return storage.shared_bytes(shape) + storage.expert_bytes(shape)
    name = str(options.values.get("model", ""))
    least, _ = named_bytes(name)
    return parameters_of(name) * least


def named_bytes(name: str) -> tuple[float, float]:
    """Returns the least and most bytes of a parameter, by the format in the name of a model."""
    number_bytes = PLAIN_BYTES
    for word, size in NAMED_BYTES.items():
        if word in name.lower():
            number_bytes = (size, size)
    return number_bytes


def parameters_of(name: str) -> float:
    """Returns the parameters in a name such as Qwen3-30B-A3B; 0 without a number."""
    match = _PARAMETERS.search(name.rpartition("/")[2])
    if match is None:
        return 0.0
    return float(match[1]) * (1e12 if match[2] in "tT" else 1e9)


def _flaw(text: str, options: ReadOptions, place: Place) -> Finding:
    name, _, rule = text.partition(": ")
    if name.split()[0] in ("tensor-parallel-size", "pipeline-parallel-size"):
        option_place = options.place_of(name.split()[0], place)
        message, _, fix = f"--{name}: {rule}".partition("; ")
        return finding("C202", option_place, message, fix=fix)
    if name == "enable-expert-parallel":
        message, _, fix = f"--{name}: {rule}".partition("; ")
        return finding("C202", options.place_of(name, place), message, fix=fix)
    return finding("M305", place, f"memory not checked: {text}")


def _formats(
    options: ReadOptions, shape: CostShape, device: OwnedDevice, place: Place
) -> Iterator[Finding]:
    """Yields the formats that a device cannot compute."""
    quantization: Quantization | None = shape.quantization_config
    method = str(options.values.get("quantization") or "")
    if not method and quantization is not None:
        method = quantization.quant_method
    option_place = options.place_of("quantization", place)
    if device.capability == AMD:
        algorithm = quantization.quant_algo if quantization is not None else ""
        if method in NVIDIA_ONLY and "FP4" in algorithm:
            message = f"{device.name} cannot compute weights in NVFP4"
            yield finding("D405", option_place, message, fix="use a checkpoint in FP8 or MXFP4")
        return
    if device.capability < AMPERE and method in NEEDS_AMPERE:
        message = f"{device.name} cannot compute weights in {method}"
        yield finding("D405", option_place, message, fix="use a checkpoint in GPTQ, or in 16 bits")
    if device.capability < TURING and method.startswith("awq"):
        message = f"{device.name} cannot compute weights in AWQ"
        yield finding("D405", option_place, message, fix="use a checkpoint in GPTQ, or in 16 bits")
    if device.capability < AMPERE and options.values.get("dtype") == "bfloat16":
        message = f"{device.name} does not compute in bfloat16"
        yield finding("D405", options.place_of("dtype", place), message, fix="use --dtype half")


def _verdict(
    fit: Fit, options: ReadOptions, shape: CostShape, *, device: OwnedDevice, place: Place
) -> Finding:
    budget = fit.budget
    margin = f"margin {fit.margin_bytes / GIB:.1f} GiB"
    parts = (
        f"weights {budget.weight_bytes / GIB:.1f} GiB, activation and graphs"
        f" {budget.reserved_bytes / GIB:.1f} GiB"
    )
    highest = fit.tokens(1)
    lowest = fit.tokens(-1)
    is_automatic = str(options.values.get("max-model-len", "")) == "-1"
    if not highest:
        message = f"{parts} leave no KV cache on {device.name} ({margin})"
        return finding("M301", place, message, fix=_fix(fit, options, shape, device=device))
    tokens = f"KV cache of {fit.tokens():,} tokens ({lowest:,} to {highest:,}, {margin})"
    if fit.length > fit.longest(1) and not is_automatic:
        option_place = options.place_of("max-model-len", place)
        message = f"{tokens} on {device.name} does not hold a request of {fit.length:,} tokens"
        return finding("M302", option_place, message, fix=_fix(fit, options, shape, device=device))
    requests = f"{fit.concurrency:.1f} requests of {fit.length:,} tokens"
    text = f"{tokens} on {device.name}, {requests}; {parts}"
    if not lowest or (fit.length > fit.longest(-1) and not is_automatic):
        fix = _fix(fit, options, shape, device=device)
        return finding("M303", place, f"fits by less than the margin: {text}", fix=fix)
    return finding("M304", place, f"fits: {text}")


def _fix(fit: Fit, options: ReadOptions, shape: CostShape, *, device: OwnedDevice) -> str:
    """Returns the longest context that fits, and the smallest parallel size that would."""
    advice = []
    lowest = fit.longest(-1) // 16 * 16
    if lowest >= 1024:
        advice.append(f"--max-model-len {lowest}")
    size = (number_of(options.values, "tensor-parallel-size") or 1) * 2
    while size <= MAX_TENSOR_PARALLEL:
        values = {**options.values, "tensor-parallel-size": str(size)}
        with suppress(ConfigError):
            larger = estimate(shape, values, device, options.version)
            if larger.longest(-1) >= fit.length:
                advice.append(f"--tensor-parallel-size {size}")
                break
        size *= 2
    return f"use {' or '.join(advice)}" if advice else "use a device with more memory"
