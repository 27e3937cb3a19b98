"""Which models and devices a computed profile knows: a generated page of the documentation.

$ python -m scripts.reference_coverage
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp
from statistics import median
from typing import TypeAlias

import msgspec

from app.extensions.costs.datasheet import SUM_OVER_KERNELS, datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.error_model import read_errors
from app.extensions.costs.repacks import find_config
from app.extensions.costs.shapes import CostShape
from app.extensions.costs.text_configs import ENCODER_NETWORKS, MATRICES, has_known_cost
from config.declaration import ConfigError
from scripts.generated_page import Page, Section, code
from vllm_facts.accelerator import GIB
from vllm_facts.devices import DEVICES
from vllm_facts.known_models import known_models
from vllm_facts.model_shape import family_of


@dataclass(frozen=True, slots=True)
class Model:
    """A model that people serve, with its checkpoints; the first that answers best is taken."""

    name: str
    checkpoints: tuple[str, ...]
    measured_as: str = ""
    """Name of measured servers of this model, or of another one with the same shape."""


MODELS = (
    Model("Llama-3.1-8B", ("meta-llama/Llama-3.1-8B-Instruct",)),
    Model(
        "Llama-3.3-70B",
        (
            "nvidia/Llama-3.3-70B-Instruct-FP8",
            "nvidia/Llama-3.3-70B-Instruct-FP4",
            "meta-llama/Llama-3.3-70B-Instruct",
        ),
        "llama-3.1-70b",
    ),
    Model(
        "Llama-4-Scout",
        (
            "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
            "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        ),
    ),
    Model("Qwen3-8B", ("Qwen/Qwen3-8B",)),
    Model("Qwen3-32B", ("Qwen/Qwen3-32B",), "qwen3-32b"),
    Model("Qwen3-30B-A3B", ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B-FP8")),
    Model(
        "Qwen3-235B-A22B",
        (
            "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
            "nvidia/Qwen3-235B-A22B-NVFP4",
            "Qwen/Qwen3-235B-A22B-Instruct-2507",
        ),
        "qwen3-235b",
    ),
    Model("Qwen3-Next-80B-A3B", ("Qwen/Qwen3-Next-80B-A3B-Instruct",)),
    Model("Qwen2.5-VL-7B", ("Qwen/Qwen2.5-VL-7B-Instruct",)),
    Model("gpt-oss-20b", ("openai/gpt-oss-20b",)),
    Model("gpt-oss-120b", ("openai/gpt-oss-120b",), "gpt-oss-120b"),
    Model("DeepSeek-R1", ("deepseek-ai/DeepSeek-R1", "nvidia/DeepSeek-R1-NVFP4")),
    Model("DeepSeek-V3.2", ("deepseek-ai/DeepSeek-V3.2", "nvidia/DeepSeek-V3.2-NVFP4")),
    Model("Kimi-K2.5", ("nvidia/Kimi-K2.5-NVFP4", "moonshotai/Kimi-K2.5"), "kimi-k2.5"),
    Model("GLM-4.6", ("zai-org/GLM-4.6-FP8", "zai-org/GLM-4.6")),
    Model("GLM-5", ("zai-org/GLM-5-FP8", "nvidia/GLM-5-NVFP4")),
    Model("MiniMax-M2.5", ("MiniMaxAI/MiniMax-M2.5", "nvidia/MiniMax-M2.5-NVFP4"), "minimax-m2.5"),
    Model("Mistral-Small-3.2", ("mistralai/Mistral-Small-3.2-24B-Instruct-2506",)),
    Model("Gemma-3-27B", ("google/gemma-3-27b-it",)),
    Model("Nemotron-3-Nano", ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",)),
)
SHOWN = ("h100", "h200", "a100", "l40s", "b200", "b300", "gb200", "gb300", "rtx-pro-6000", "l4")
AMD = ("mi300x", "mi355x")
CARDS = (
    *("rtx3090", "rtx4090", "rtx5090", "rtx6000-ada", "a10g", "a40", "a100-40gb"),
    *("h20", "gb10"),
)
"""Workstation cards and older devices."""
SIZES = (1, 2, 4, 8, 16)
"""Devices of an engine; 16 are two stages of eight."""
MAX_TENSOR_PARALLEL = 8
FILLED_IN_FIELDS = {
    "num_key_value_heads": "`num_attention_heads`",
    "head_dim": "`hidden_size` / `num_attention_heads`",
    "moe_intermediate_size": "`intermediate_size`",
}
"""Field of a `config.json` -> value that `CostShape` computes if the field is absent."""
PRECISIONS_NOTE = (
    "The words apply to the checkpoints under [Smallest engines](#smallest-engines). Errors depend"
    " on the precision: for example, `qwen3-32b` (BF16) and `qwen3-32b-fp8` have separate rows in"
    " [Measured pairs](#measured-pairs)."
)
"""Note below the table of models and devices."""
WEIGHT_NAMES = {"fp8-block": "FP8 in blocks"}
"""Names of weight formats that are not their keys in uppercase."""
NO_ROOM = re.compile(r"leave no room")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for a model on a device."""

    kind: str
    """measured, tables, scaled or refused."""
    detail: str
    """Devices and checkpoint, or the reason of a refusal."""


Answers: TypeAlias = Mapping[tuple[str, str], Answer]
"""Model and device -> answer."""


def measured_errors(figure: str = "tpot") -> Mapping[tuple[str, str], list[float]]:
    """Returns the errors of `tpot` or `ttft` by the name of the measured model and its device."""
    errors: dict[tuple[str, str], list[float]] = {}
    for error in read_errors():
        residual = error.residual(figure)
        if residual is not None:
            place = (error.group.partition(",")[0], error.situation.device)
            errors.setdefault(place, []).append(abs(exp(-residual) - 1))
    return errors


def measured_weights() -> Mapping[str, str]:
    """Returns the format of the weights by the name of the measured model."""
    names = {}
    for error in read_errors():
        weights = error.situation.weights
        names[error.group.partition(",")[0]] = WEIGHT_NAMES.get(weights, weights.upper())
    return names


def answer(model: Model, device: str) -> Answer:
    """Returns the best answer of a model's checkpoints on a device."""
    scaled: Answer | None = None
    reasons = []
    for checkpoint in model.checkpoints:
        result = _answer_of(checkpoint, device)
        if result.kind == "tables":
            return result
        if result.kind == "refused":
            reasons.append(result)
        elif scaled is None:
            scaled = result
    return scaled or reasons[-1]


def _answer_of(checkpoint: str, device: str) -> Answer:
    config = find_config(checkpoint)
    reason = ""
    for size in SIZES:
        tensor = min(size, MAX_TENSOR_PARALLEL)
        options = EngineOptions(tensor_parallel_size=tensor, pipeline_parallel_size=size // tensor)
        try:
            profile = datasheet_profile(config, device, options, origin=checkpoint)
        except ConfigError as error:
            # A size that does not divide the heads says nothing about the model's size.
            if NO_ROOM.search(str(error)) or not reason:
                reason = str(error)
            continue
        kind = "scaled"
        if profile.checked.startswith(SUM_OVER_KERNELS):
            kind = "tables"
        return Answer(kind, f"{size} × {code(checkpoint)}")
    return Answer("refused", reason.partition(", beside")[0])


def answers() -> Answers:
    """Returns the answer for each model and device."""
    errors = measured_errors()
    results = {}
    for model in MODELS:
        for device in (*SHOWN, *AMD, *CARDS):
            best = answer(model, device)
            was_measured = any(
                place == device and is_measured(model, name) for name, place in errors
            )
            if best.kind == "tables" and was_measured:
                best = Answer("measured", best.detail)
            results[model.name, device] = best
    return results


def coverage_page() -> Page:
    """Returns docs/reference-coverage.md."""
    results = answers()
    sections = [
        Section("What the words mean", ("word", "meaning", "median error"), list(_meanings())),
        _pairs("Models by NVIDIA's devices", SHOWN, results, note=PRECISIONS_NOTE),
        _pairs("Models by AMD's devices", AMD, results),
        _pairs("Models by cards and older devices", CARDS, results),
        Section("Pairs", ("devices", *KINDS), list(_counts(results))),
        Section(
            "Measured pairs",
            ("model", "weights", "device", "runs", "median error of TPOT", "of TTFT"),
            measured_rows(results),
        ),
        Section("Devices", ("name", "device", "memory, GiB"), list(_devices())),
        Section("Model names", ("name", "architecture"), list(_model_names())),
        Section("Architectures", ("architecture", "input", "model names"), list(_architectures())),
        Section("Fields of config.json", ("field", "default"), list(_fields())),
        Section("Refusals", ("model", "device", "reason"), _details(results, refused=True)),
        Section(
            "Smallest engines", ("model", "device", "checkpoint"), _details(results, refused=False)
        ),
    ]
    return Page("reference-coverage.md", "Models and devices of computed profiles", sections)


def _details(results: Answers, *, refused: bool) -> list[tuple[str, str, str]]:
    """Returns the details of the answers, or of the refusals."""
    return [
        (model, code(device), result.detail)
        for (model, device), result in results.items()
        if (result.kind == "refused") == refused
    ]


KINDS = ("measured", "tables", "scaled", "refused")


def _meanings() -> Iterator[tuple[str, str, str]]:
    """Yields the words with their meanings and median errors, which docs/accuracy.md explains."""
    yield (
        "measured",
        "constants come from operator tables of this device; servers with this model, or one of"
        " its shape, were compared",
        "see [Measured pairs](#measured-pairs)",
    )
    yield (
        "tables",
        "constants come from operator tables of this device; no server was compared. No table has"
        " the state-space kernels of Nemotron: they move their states as fast as linear attention"
        " does",
        "unknown; `simulate` prints an 80 % interval. In two sets of runs outside the fit, on"
        " measured devices: 3.9 and 7.0 % for TPOT, 10.5 and 14.0 % for TTFT",
    )
    yield (
        "scaled",
        "constants are shares of the data sheet, for all kernels or for some",
        "`simulate` prints an 80 % interval. In 584 runs with profiles without measured kernels,"
        " TPOT was 29 % and TTFT 56 % higher than predicted",
    )
    yield "refused", "16 devices do not hold the model", ""


def _pairs(heading: str, devices: tuple[str, ...], results: Answers, note: str = "") -> Section:
    rows = [
        (model.name, *(results[model.name, device].kind for device in devices)) for model in MODELS
    ]
    return Section(heading, ("model", *map(code, devices)), rows, note)


def _counts(results: Answers) -> Iterator[tuple[str, ...]]:
    for name, devices in (("NVIDIA", SHOWN), ("AMD", AMD), ("cards and older", CARDS)):
        kinds = Counter(result.kind for (_, device), result in results.items() if device in devices)
        yield name, *(str(kinds[kind]) for kind in KINDS)


def measured_rows(results: Answers) -> list[tuple[str, ...]]:
    """Returns the runs of each measured model and device, ordered by name, and median errors."""
    rows: list[tuple[str, ...]] = []
    weights = measured_weights()
    ttft_errors = measured_errors("ttft")
    for place, errors in sorted(measured_errors().items()):
        name, device = place
        for model in MODELS:
            if is_measured(model, name) and results[model.name, device].kind == "measured":
                tpot_error = f"{100 * median(errors):.1f} %"
                ttft_error = ""
                if place in ttft_errors:
                    ttft_error = f"{100 * median(ttft_errors[place]):.1f} %"
                runs = str(len(errors))
                rows.append((name, weights[name], code(device), runs, tpot_error, ttft_error))
    return rows


def _devices() -> Iterator[tuple[str, ...]]:
    """Yields the values of `--device`."""
    for name, device in DEVICES.items():
        yield code(name), device.name, f"{device.memory / GIB:.1f}"


def _model_names() -> Iterator[tuple[str, ...]]:
    """Yields the names that `--model` accepts without a file."""
    for name in sorted(_costed_models(), key=str.lower):
        yield code(name), code(_architecture_of(name))


def _costed_models() -> list[str]:
    """Returns the names of models whose cost is known, and not their memory alone."""
    return [name for name, config in known_models().items() if has_known_cost(config)]


def _architectures() -> Iterator[tuple[str, ...]]:
    """Yields the supported architectures, and how many known models have each."""
    counts = Counter(_architecture_of(name) for name in _costed_models())
    for architecture in sorted(MATRICES):
        kind = "text"
        if family_of(architecture) in ENCODER_NETWORKS and "Conditional" in architecture:
            kind = "text and images"
        yield code(architecture), kind, str(counts[architecture])


def _architecture_of(name: str) -> str:
    """Returns the architecture of a known model."""
    architectures = known_models()[name]["architectures"]
    assert isinstance(architectures, list)
    return str(architectures[0])


def _fields() -> Iterator[tuple[str, ...]]:
    """Yields the fields of a `config.json` that are read; all others are ignored."""
    for field in msgspec.structs.fields(CostShape):
        default = "none"
        if field.required:
            default = "required"
        elif field.name in FILLED_IN_FIELDS:
            default = FILLED_IN_FIELDS[field.name]
        elif isinstance(field.default, int):
            default = code(str(field.default).lower())
        yield code(field.name), default


def is_measured(model: Model, name: str) -> bool:
    """Returns whether a measured model is this one."""
    return bool(model.measured_as) and name.startswith(model.measured_as)


def main() -> None:
    """Writes the page."""
    page = coverage_page()
    page.path.write_text(page.markdown(), "utf-8")


if __name__ == "__main__":
    main()
