"""Verdicts on a model and its context in the memory of devices. Start at `memory_verdicts`.

A verdict is a value. `check` turns it into a finding, and a server that simulates a device logs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum

from msgspec import Struct

from app.extensions.costs.engine_options import UnequalPartsError
from app.extensions.costs.fit import Fit, engine_options, estimate, shape_of
from app.extensions.costs.shapes import CostShape, Quantization
from app.extensions.costs.storage_formats import read_storage
from config.declaration import ConfigError
from config.sources import FlagValues
from vllm_facts.accelerator import GIB, OTHER_MAKER, DeviceMemory
from vllm_facts.model_choice import Choice
from vllm_facts.option_numbers import number_of, parallel_devices

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
WIDER_FORMAT = "use a checkpoint in GPTQ, or in 16 bits"


class Kind(Enum):
    """The kind of a verdict. The value is the code in docs/check-codes.md."""

    UNEQUAL_PARTS = "C202"
    WRONG_FORMAT = "D405"
    NO_CACHE = "M301"
    SHORT_CACHE = "M302"
    WITHIN_MARGIN = "M303"
    FITS = "M304"
    UNCHECKED = "M305"

    @property
    def is_flaw(self) -> bool:
        """Returns whether vLLM does not start, or can fail."""
        return self not in (Kind.FITS, Kind.UNCHECKED)

    @property
    def compares_shape(self) -> bool:
        """Returns whether the verdict compares the shape of a model with a device."""
        return self in (Kind.NO_CACHE, Kind.SHORT_CACHE, Kind.WITHIN_MARGIN, Kind.FITS)


class MemoryVerdict(Struct, frozen=True, kw_only=True):
    """One statement about a model on a device."""

    kind: Kind
    message: str
    option: str = ""
    """Option that the verdict is about, without dashes; empty for the whole command line."""
    fix: str = ""


class ServerMemory(Struct, frozen=True, kw_only=True):
    """A server whose memory is judged."""

    name: str
    """The model, for messages."""
    shape: CostShape | None
    """None for a model that is not known, which is judged by its name."""
    values: FlagValues
    """Options of the server, by name without dashes."""
    version: str
    """Version of vLLM, such as 0.32."""
    device: DeviceMemory


def memory_verdicts(server: ServerMemory) -> Iterator[MemoryVerdict]:
    """Yields formats that the device cannot compute, and then whether the model fits."""
    shape = server.shape
    if shape is None:
        yield _by_name(server)
        return
    yield from _formats(shape, server.values, server.device)
    if _offloads_weights(server.values):
        message = "memory not checked: --cpu-offload-gb keeps weights in the memory of the host"
        yield MemoryVerdict(kind=Kind.UNCHECKED, message=message)
        return
    try:
        fit = estimate(shape, server.values, server.device, server.version)
    except UnequalPartsError as error:
        yield _unequal_parts(error)
        return
    except ConfigError as error:
        yield MemoryVerdict(kind=Kind.UNCHECKED, message=f"memory not checked: {error}")
        return
    yield _size_verdict(fit, shape, server)


def parallelism_verdict(shape: CostShape, values: FlagValues, version: str) -> MemoryVerdict | None:
    """Returns that the parallel sizes do not divide the model on any device; None if they do."""
    try:
        engine_options(values, version).check(shape, "the model")
    except UnequalPartsError as error:
        return _unequal_parts(error)
    return None


def _by_name(server: ServerMemory) -> MemoryVerdict:
    """Compares the memory with weights of the number of parameters in a name.

    Only weights that cannot fit are an error: without a format in the name, they can have 8 bits.
    """
    advice = "give its config.json with --model-config"
    name = server.name
    device = server.device
    message = f"memory not checked: the shape of {name} is not known"
    parameters = parameters_of(name)
    if not parameters or _offloads_weights(server.values):
        return MemoryVerdict(kind=Kind.UNCHECKED, message=message, fix=advice)
    count = parallel_devices(server.values)
    smallest, largest = (parameters * size / count / GIB for size in named_bytes(name))
    memory = device.memory / GIB
    if smallest > memory:
        text = f"weights of at least {smallest:.0f} GiB, by the name of {name}, do not fit"
        return MemoryVerdict(
            kind=Kind.NO_CACHE, message=f"{text} on {device.name}", fix="use more devices"
        )
    weights = (
        f"{largest:.0f} GiB" if smallest == largest else f"{smallest:.0f} to {largest:.0f} GiB"
    )
    text = f"the name stands for weights of {weights} in {memory:.0f} GiB on {device.name}"
    return MemoryVerdict(kind=Kind.UNCHECKED, message=f"{message}; {text}", fix=advice)


def _offloads_weights(values: FlagValues) -> bool:
    """Returns whether weights are in the memory of the host, such as 0.5 GiB."""
    return float(str(values.get("cpu-offload-gb") or 0)) > 0


def smallest_weights(values: FlagValues, version: str, choice: Choice | None) -> float:
    """Returns the bytes of a model's weights, at least; 0 for an unknown model."""
    shape = shape_of(choice, "")
    if shape is not None:
        with suppress(ConfigError):
            engine = engine_options(values, version)
            quantization = engine.weight_quantization(shape.quantization_config, "the model")
            storage = read_storage(quantization, "the model")
            return storage.shared_bytes(shape) + storage.expert_bytes(shape)
    name = str(values.get("model", ""))
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


def _unequal_parts(error: UnequalPartsError) -> MemoryVerdict:
    return MemoryVerdict(
        kind=Kind.UNEQUAL_PARTS,
        message=f"--{error.flaw}",
        option=error.option,
        fix=error.advice,
    )


def _formats(shape: CostShape, values: FlagValues, device: DeviceMemory) -> Iterator[MemoryVerdict]:
    """Yields the formats that a device cannot compute."""
    quantization: Quantization | None = shape.quantization_config
    method = str(values.get("quantization") or "")
    if not method and quantization is not None:
        method = quantization.quant_method
    if device.capability == OTHER_MAKER:
        algorithm = quantization.quant_algo if quantization is not None else ""
        if method in NVIDIA_ONLY and "FP4" in algorithm:
            yield _format_verdict(device, "weights in NVFP4", "use a checkpoint in FP8 or MXFP4")
        return
    if device.capability < AMPERE and method in NEEDS_AMPERE:
        yield _format_verdict(device, f"weights in {method}", WIDER_FORMAT)
    if device.capability < TURING and method.startswith("awq"):
        yield _format_verdict(device, "weights in AWQ", WIDER_FORMAT)
    if device.capability < AMPERE and values.get("dtype") == "bfloat16":
        yield MemoryVerdict(
            kind=Kind.WRONG_FORMAT,
            message=f"{device.name} does not compute in bfloat16",
            option="dtype",
            fix="use --dtype half",
        )


def _format_verdict(device: DeviceMemory, weights: str, fix: str) -> MemoryVerdict:
    return MemoryVerdict(
        kind=Kind.WRONG_FORMAT,
        message=f"{device.name} cannot compute {weights}",
        option="quantization",
        fix=fix,
    )


def _size_verdict(fit: Fit, shape: CostShape, server: ServerMemory) -> MemoryVerdict:
    device = server.device
    budget = fit.budget
    margin = f"margin {fit.margin_bytes / GIB:.1f} GiB"
    parts = (
        f"weights {budget.weight_bytes / GIB:.1f} GiB, activation and graphs"
        f" {budget.reserved_bytes / GIB:.1f} GiB"
    )
    highest = fit.tokens(1)
    lowest = fit.tokens(-1)
    is_automatic = str(server.values.get("max-model-len", "")) == "-1"
    if not highest:
        return MemoryVerdict(
            kind=Kind.NO_CACHE,
            message=f"{parts} leave no KV cache on {device.name} ({margin})",
            fix=_fix(fit, shape, server),
        )
    tokens = f"KV cache of {fit.tokens():,} tokens ({lowest:,} to {highest:,}, {margin})"
    if fit.length > fit.longest(1) and not is_automatic:
        return MemoryVerdict(
            kind=Kind.SHORT_CACHE,
            message=f"{tokens} on {device.name} does not hold a request of {fit.length:,} tokens",
            option="max-model-len",
            fix=_fix(fit, shape, server),
        )
    requests = f"{fit.concurrency:.1f} requests of {fit.length:,} tokens"
    text = f"{tokens} on {device.name}, {requests}; {parts}"
    if not lowest or (fit.length > fit.longest(-1) and not is_automatic):
        return MemoryVerdict(
            kind=Kind.WITHIN_MARGIN,
            message=f"fits by less than the margin: {text}",
            fix=_fix(fit, shape, server),
        )
    return MemoryVerdict(kind=Kind.FITS, message=f"fits: {text}")


def _fix(fit: Fit, shape: CostShape, server: ServerMemory) -> str:
    """Returns the longest context that fits, and the smallest parallel size that would."""
    advice = []
    lowest = fit.longest(-1) // 16 * 16
    if lowest >= 1024:
        advice.append(f"--max-model-len {lowest}")
    size = (number_of(server.values, "tensor-parallel-size") or 1) * 2
    while size <= MAX_TENSOR_PARALLEL:
        values = {**server.values, "tensor-parallel-size": str(size)}
        with suppress(ConfigError):
            larger = estimate(shape, values, server.device, server.version)
            if larger.longest(-1) >= fit.length:
                advice.append(f"--tensor-parallel-size {size}")
                break
        size *= 2
    return f"use {' or '.join(advice)}" if advice else "use a device with more memory"
