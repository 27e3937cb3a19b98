"""Findings about the model of a command line. Start reading at `check_model`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from app.extensions.check.combinations import number_of
from app.extensions.check.findings import Finding, Place
from app.extensions.check.options import ReadOptions
from app.extensions.check.rules import finding
from config.declaration import ConfigError
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from config.vllm.model_choice import Choice, choose_model, is_folder, task_of

LONG_LENGTH_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
CHAT_OPTIONS = ("enable-auto-tool-choice", "tool-call-parser", "reasoning-parser", "chat-template")
"""Options that only a model that generates text uses."""
PARSERS = (("tool-call-parser", "D401"), ("reasoning-parser", "D402"))
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


def chosen_model(options: ReadOptions) -> Choice | None:
    """Returns the model; None for one that is not known here."""
    word = options.values.get("model")
    if not isinstance(word, str) or not word:
        return None
    overrides: object = None
    with suppress(UntrustedDataError):
        overrides = decode_untrusted(
            str(options.values.get("hf-overrides", "null")), decoder=python_json
        )
    try:
        return choose_model(word, overrides, skips_check=True)
    except ConfigError:
        return None


def check_model(
    options: ReadOptions, choice: Choice, environment: Mapping[str, Place], place: Place
) -> Iterator[Finding]:
    """Yields what does not suit the model."""
    facts = choice.facts
    if not choice.is_known:
        name = options.values["model"]
        if not is_folder(str(name)):
            yield finding(
                "D407",
                options.place_of("model", _place_of_model(options, place)),
                f"{name} is not in the table of models, so it is not checked",
                fix="give its config.json with --model-config",
            )
        return
    yield from _parsers(options, choice, place)
    length = number_of(options.values, "max-model-len")
    if facts.max_model_len and length > facts.max_model_len:
        found = options.place_of("max-model-len", place)
        has_scaling = "rope" in str(options.values.get("hf-overrides", ""))
        if LONG_LENGTH_VARIABLE not in environment and not has_scaling:
            message = (
                f"--max-model-len {length} is more than the {facts.max_model_len} tokens of"
                f" {choice.name}"
            )
            fix = f"use --max-model-len {facts.max_model_len}, or set {LONG_LENGTH_VARIABLE}=1"
            yield finding("D403", found, message, fix=fix)
    task = facts.task or task_of(facts.architecture)
    if task and options.values.get("runner") != "generate":
        for name in CHAT_OPTIONS:
            if name in options.values:
                message = f"{choice.name} is a pooling model ({task}), which does not use --{name}"
                found = options.place_of(name, place)
                yield finding("D404", found, message, fix=f"remove --{name}")
                break
    trusts = options.values.get("trust-remote-code") == "true"
    if facts.architecture in REMOTE_CODE and not trusts and "*" not in options.unknown_options:
        message = f"{choice.name} needs code of its repository"
        found = _place_of_model(options, place)
        yield finding("D406", found, message, fix="add --trust-remote-code")


def _parsers(options: ReadOptions, choice: Choice, place: Place) -> Iterator[Finding]:
    expected = {
        "tool-call-parser": choice.facts.tool_parser,
        "reasoning-parser": choice.facts.reasoning_parser,
    }
    for name, code in PARSERS:
        value = options.values.get(name)
        parser = expected[name]
        if not isinstance(value, str) or not value or not parser or value == parser:
            continue
        if any({value, parser} <= group for group in EQUAL_PARSERS):
            continue
        message = f"--{name} {value} is not the parser of {choice.name}"
        yield finding(code, options.place_of(name, place), message, fix=f"use --{name} {parser}")


def _place_of_model(options: ReadOptions, place: Place) -> Place:
    model = options.values.get("model")
    return next((word.place for word in options.words if word.text == model), place)
