"""Loads of inference-perf: the requests that a specification (YAML) would send.

Supported are stages of constant and Poisson arrivals with the data types random, synthetic,
shared_prefix and shareGPT. inference-perf begins a stage `interval` seconds after the one before;
here it does not wait for the answers of that stage.
"""

import re
from collections.abc import Callable, Iterator
from math import exp, log, sqrt
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from config import ConfigError
from config.yaml_file import PlainNumberLoader, decode_yaml
from workbench.load.loads import MAX_LOAD_S, MAX_TOKENS, LoadTrace
from workbench.load.synthetic import read_lengths

SECTION = re.compile(rb"^(?:load|data|server|api|metrics|report|storage|tokenizer)\s*:", re.M)
DATA_TYPES = ("random", "shareGPT", "shared_prefix", "synthetic")
LOAD_TYPES = ("constant", "poisson")
MAX_REQUESTS = 10_000_000

Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Deviation = Annotated[float, Meta(ge=0, le=MAX_TOKENS)]
Draw = Callable[[Random], int]
"""Returns the tokens of a prompt or an answer."""


class _Stage(Struct):
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    duration: Annotated[float, Meta(gt=0, le=MAX_LOAD_S)] | None = None


class _LoadSection(Struct):
    stages: list[_Stage] = []
    type: str = "constant"
    interval: Annotated[float, Meta(ge=0, le=MAX_LOAD_S)] = 1.0
    base_seed: int = 1
    sweep: dict[str, object] | None = None
    lora_traffic_split: list[dict[str, object]] | None = None


class _Distribution(Struct):
    """Lengths in tokens; older specifications have `std`."""

    min: Tokens = 10
    max: Tokens = 1024
    mean: Annotated[float, Meta(ge=1e-3, le=MAX_TOKENS)] = 512
    std_dev: Deviation | None = None
    std: Deviation = 200
    type: Literal["normal", "uniform", "fixed", "lognormal"] = "normal"

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError(f"min {self.min} must not exceed max {self.max}")

    def draw(self, rng: Random) -> int:
        """Returns a number of tokens."""
        deviation = self.std if self.std_dev is None else self.std_dev
        if self.type == "uniform":
            return rng.randint(self.min, self.max)
        tokens = self.mean
        if self.type == "normal":
            tokens = rng.gauss(self.mean, deviation)
        elif self.type == "lognormal":
            variance = log(1 + (deviation / self.mean) ** 2)
            tokens = exp(rng.gauss(log(self.mean) - variance / 2, sqrt(variance)))
        return round(min(max(tokens, self.min), self.max))


class _SharedPrefix(Struct):
    """Prompts of groups; newer specifications have names with `unique` and `users`."""

    num_groups: Tokens = 10
    num_unique_system_prompts: Tokens | None = None
    system_prompt_len: Tokens = 100
    question_len: Tokens = 50
    output_len: Tokens = 50
    question_distribution: _Distribution | None = None
    output_distribution: _Distribution | None = None
    enable_multi_turn_chat: bool = False


class _DataSection(Struct):
    type: str = "random"
    input_distribution: _Distribution | None = None
    output_distribution: _Distribution | None = None
    shared_prefix: _SharedPrefix | None = None


class _Specification(Struct):
    load: _LoadSection
    data: _DataSection


def is_specification(head: bytes) -> bool:
    """Returns whether a file with this beginning is a specification of inference-perf."""
    return SECTION.search(head) is not None


def read_specification(path: Path, text: str) -> LoadTrace:
    """Returns the load of a specification; its `base_seed` decides the draws.

    Raises:
        ConfigError: The specification is wrong, or has a load that is not supported.
    """
    try:
        document = decode_yaml(text, PlainNumberLoader)
        specification = msgspec.convert(document, _Specification)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: invalid inference-perf specification: {reason}") from None
    load = LoadTrace(str(path))
    try:
        _fill(load, specification)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return load


def _fill(load: LoadTrace, specification: _Specification) -> None:
    """Appends the requests of all stages. Raises ValueError for an unsupported load."""
    section = specification.load
    _check_load(section)
    rng = Random(section.base_seed)
    data = specification.data
    prefix = None
    if data.type == "shared_prefix":
        prefix = data.shared_prefix or _SharedPrefix()
    draw_input, draw_output = _lengths(data)
    for arrival_s in _arrivals(section, rng):
        input_tokens = draw_input(rng)
        if prefix is not None:
            groups = prefix.num_unique_system_prompts or prefix.num_groups
            load.group.append(rng.randrange(groups))
            load.prefix_tokens.append(prefix.system_prompt_len)
            input_tokens += prefix.system_prompt_len
        load.arrival_s.append(arrival_s)
        load.input_tokens.append(input_tokens)
        load.output_tokens.append(draw_output(rng))


def _check_load(section: _LoadSection) -> None:
    if section.type == "concurrent":
        raise ValueError(
            "load.type concurrent is not supported; use --num-requests and --in-flight instead"
        )
    if section.type not in LOAD_TYPES:
        raise ValueError(
            f"load.type {section.type} is not supported; use one of {', '.join(LOAD_TYPES)}"
        )
    if section.sweep is not None:
        raise ValueError("load.sweep requires a server; use --sweep rate=FROM:TO:STEP instead")
    if not section.stages:
        raise ValueError("load.stages is missing")
    requests = 0.0
    for number, stage in enumerate(section.stages, 1):
        if stage.rate is None or stage.duration is None:
            raise ValueError(f"load.stages: stage {number} requires a rate and a duration")
        requests += stage.rate * stage.duration
    if requests > MAX_REQUESTS:
        raise ValueError(
            f"load.stages must not specify more than {MAX_REQUESTS:,} requests, got {requests:,.0f}"
        )


def _lengths(data: _DataSection) -> tuple[Draw, Draw]:
    """Returns the lengths of prompts, without shared prefixes, and of answers."""
    if data.type in ("random", "synthetic"):
        prompts = data.input_distribution or _Distribution()
        answers = data.output_distribution or _Distribution()
        return prompts.draw, answers.draw
    if data.type == "shareGPT":
        return read_lengths("sharegpt", "input").draw, read_lengths("sharegpt", "output").draw
    if data.type != "shared_prefix":
        raise ValueError(
            f"data.type {data.type} is not supported; use one of {', '.join(DATA_TYPES)}"
        )
    prefix = data.shared_prefix or _SharedPrefix()
    if prefix.enable_multi_turn_chat:
        raise ValueError(
            "data.shared_prefix.enable_multi_turn_chat is not supported; use --turns and --think"
        )
    question = prefix.question_distribution or _fixed(prefix.question_len)
    answer = prefix.output_distribution or _fixed(prefix.output_len)
    return question.draw, answer.draw


def _fixed(tokens: int) -> _Distribution:
    return _Distribution(min=tokens, max=tokens, mean=tokens, type="fixed")


def _arrivals(section: _LoadSection, rng: Random) -> Iterator[float]:
    """Yields the seconds of all requests."""
    begin_s = 0.0
    for stage in section.stages:
        rate = stage.rate or 0.0
        duration_s = stage.duration or 0.0
        if section.type == "constant":
            for number in range(max(1, round(rate * duration_s))):
                yield begin_s + number / rate
        else:
            at_s = rng.expovariate(rate)
            while at_s < duration_s:
                yield begin_s + at_s
                at_s += rng.expovariate(rate)
        begin_s += duration_s + section.interval
