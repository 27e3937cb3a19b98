"""Options that do not suit the model, which vLLM rejects late, or starts with.

`serve` starts anyway, with a warning: a stand-in runs each model. `check` reports each flaw.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from msgspec import Struct

from config.sources import FlagValues
from vllm_facts.model_choice import Choice
from vllm_facts.registry import generation_refusal

LONG_LENGTH_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
CHAT_OPTIONS = ("enable-auto-tool-choice", "tool-call-parser", "reasoning-parser")
"""Options that only a model that generates text uses. A pooling model renders conversations with
`--chat-template`, and a cross-encoder its pairs."""
REMOTE_CODE = frozenset(
    (
        "BaiChuanForCausalLM",
        "BaichuanForCausalLM",
        "InternLM2ForCausalLM",
        "InternLMForCausalLM",
        "InternVLChatModel",
        "OrionForCausalLM",
        "QWenLMHeadModel",
        "TeleChat2ForCausalLM",
        "TeleChatForCausalLM",
        "XverseForCausalLM",
    )
)
"""Architectures whose configuration or tokenizer is code of the model's repository."""
EQUAL_PARSERS = (
    {"deepseek_v3", "deepseek_v31"},
    {"hermes", "qwen2_5", "qwen3"},
    {"qwen3_coder", "qwen3_xml"},
)
"""Parsers that read the same calls, or that models of one name both use."""

Kind = Literal["tool-parser", "reasoning-parser", "length", "pooling", "remote-code", "runner"]


class ModelFlaw(Struct, frozen=True):
    """An option that does not suit the model."""

    kind: Kind
    option: str
    """The option with the flaw; `model` for an option that is missing."""
    message: str
    fix: str


def model_flaws(
    options: FlagValues, choice: Choice, environment: Collection[str], version: str
) -> Iterator[ModelFlaw]:
    """Yields the flaws of options by name; `environment` has the names of variables."""
    if not choice.is_known:
        return
    yield from _runner(options, choice, version)
    yield from _parsers(options, choice)
    yield from _length(options, choice, environment)
    facts = choice.facts
    task = choice.task
    if task:
        for name in CHAT_OPTIONS:
            if name in options:
                message = f"{choice.name} is a pooling model ({task}), which does not use --{name}"
                yield ModelFlaw("pooling", name, message, f"remove --{name}")
                break
    if facts.architecture in REMOTE_CODE and options.get("trust-remote-code") != "true":
        message = f"{choice.name} needs code of its repository"
        yield ModelFlaw("remote-code", "model", message, "add --trust-remote-code")


def _runner(options: FlagValues, choice: Choice, version: str) -> Iterator[ModelFlaw]:
    """Yields that a class which only pools cannot generate, in vLLM's words."""
    kind = choice.kind
    if options.get("runner") == "generate" and kind.is_registered and not kind.generates:
        message = generation_refusal(kind, version)
        yield ModelFlaw("runner", "runner", message, "use --runner pooling")


def _parsers(options: FlagValues, choice: Choice) -> Iterator[ModelFlaw]:
    parsers: tuple[tuple[Kind, str, str], ...] = (
        ("tool-parser", "tool-call-parser", choice.facts.tool_parser),
        ("reasoning-parser", "reasoning-parser", choice.facts.reasoning_parser),
    )
    for kind, name, parser in parsers:
        value = options.get(name)
        if not isinstance(value, str) or not value or not parser or value == parser:
            continue
        if any({value, parser} <= group for group in EQUAL_PARSERS):
            continue
        message = f"--{name} {value} is not the parser of {choice.name}"
        yield ModelFlaw(kind, name, message, f"use --{name} {parser}")


def _length(
    options: FlagValues, choice: Choice, environment: Collection[str]
) -> Iterator[ModelFlaw]:
    limit = choice.facts.max_model_len
    name = "max-model-len"
    length = str(options.get(name) or "")
    if not limit or not length.isdecimal() or int(length) <= limit:
        return
    if LONG_LENGTH_VARIABLE in environment or "rope" in str(options.get("hf-overrides", "")):
        return
    message = f"--{name} {length} is more than the {limit} tokens of {choice.name}"
    fix = f"use --{name} {limit}, or set {LONG_LENGTH_VARIABLE}=1"
    yield ModelFlaw("length", name, message, fix)
