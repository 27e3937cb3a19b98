"""Options that the selected vLLM does not have: what the error says, and how to ignore them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from config.declaration import UsageError
from config.flag_words import Flag, full_forms_of, unknown_flag
from config.vllm.history import Lifetime, read_history
from config.vllm.option import Option
from config.vllm.options import names_of

ALLOW = "allow-removed-options"
PREFIX = "removed "
"""Prefix of removed options among the values of flags."""
SWITCHES = frozenset(
    (
        "--calculate-kv-scales",
        "--eplb-log-balancedness",
        "--expand-tools-even-if-tool-choice-none",
        "--guided-decoding-disable-additional-properties",
        "--guided-decoding-disable-any-whitespace",
        "--guided-decoding-disable-fallback",
        "--multi-step-stream-outputs",
        "--speculative-disable-mqa-scorer",
        "--worker-use-ray",
    )
)
"""Removed options without a value; so are all whose names begin with `SWITCH_PREFIXES`."""
SWITCH_PREFIXES = ("--enable-", "--disable-", "--use-")
LISTS = frozenset(("--cuda-graph-sizes", "--prompt-adapters"))
REPLACEMENTS = {
    "--eplb-log-balancedness": "--eplb-config.log_balancedness",
    "--eplb-step-interval": "--eplb-config.step_interval",
    "--eplb-window-size": "--eplb-config.window_size",
    "--guided-decoding-backend": "--structured-outputs-config.backend",
    "--guided-decoding-disable-additional-properties": (
        "--structured-outputs-config.disable_additional_properties"
    ),
    "--guided-decoding-disable-any-whitespace": (
        "--structured-outputs-config.disable_any_whitespace"
    ),
    "--max-seq-len-to-capture": "--max-cudagraph-capture-size",
    "--ngram-prompt-lookup-max": "--speculative-config.prompt_lookup_max",
    "--ngram-prompt-lookup-min": "--speculative-config.prompt_lookup_min",
    "--num-redundant-experts": "--eplb-config.num_redundant_experts",
    "--num-speculative-tokens": "--speculative-config.num_speculative_tokens",
    "--override-pooler-config": "--pooler-config",
    "--speculative-draft-tensor-parallel-size": ("--speculative-config.draft_tensor_parallel_size"),
    "--speculative-max-model-len": "--speculative-config.max_model_len",
    "--speculative-model": "--speculative-config.model",
    "--speculative-model-quantization": "--speculative-config.quantization",
    "--task": "--runner pooling, and --convert for a generative model",
}
"""Replacements that vLLM's sources do not name beside the option."""


def absent_option(
    form: str, forms: Sequence[str], *, version: str, options: Mapping[str, Option]
) -> UsageError:
    """Returns the error for a flag that is not among `forms`.

    Args:
        form: The flag as it was written, with dashes.
        forms: All flags that the selected version and the settings have.
        version: The selected version.
        options: The options of all supported versions.
    """
    for name, option in options.items():
        if option.since and form in names_of(name):
            since = option.since
            return UsageError(f"flag {form} requires vLLM {since} (--vllm-version {since})")
    text = removal_of(form, version)
    if text:
        return UsageError(f"unknown flag {form}: {text}; --{ALLOW} accepts it")
    return unknown_flag(form, forms, full_forms_of(form, forms))


def removal_of(form: str, version: str) -> str:
    """Returns when vLLM removed an option or key, and what replaces it; empty for others."""
    history = read_history()
    table = history.keys if "." in form else history.options
    lifetime = table.get(form)
    if lifetime is None:
        form = form.replace("--no-", "--", 1)
        lifetime = table.get(form)
    if lifetime is None or not lifetime.is_gone_in(version):
        return ""
    return f"vLLM removed it in {lifetime.gone_in}{_successor(form, lifetime)}"


def removed_flags(version: str, forms: Iterable[str]) -> Iterator[Flag]:
    """Yields the options that vLLM removed up to a version, except for `forms`."""
    present = frozenset(forms)
    for form, lifetime in read_history().options.items():
        if not lifetime.is_gone_in(version) or form in present:
            continue
        takes: Literal["nothing", "one", "some"] = "one"
        if form in SWITCHES or form.startswith(SWITCH_PREFIXES):
            takes = "nothing"
            yield Flag(name=PREFIX + form, forms=(form.replace("--", "--no-", 1),), takes=takes)
        elif form in LISTS:
            takes = "some"
        yield Flag(name=PREFIX + form, forms=(form,), takes=takes)


def removed_options_in(
    values: dict[str, str | list[str]], version: str, setting_forms: Iterable[str]
) -> Iterator[str]:
    """Removes the values of removed options, and yields a warning for each.

    `setting_forms` are removed options that set a setting of the same name.
    """
    for form in sorted(setting_forms):
        if form.lstrip("-") in values:
            yield f"flag {form} sets a setting: {removal_of(form, version)}"
    for name in [name for name in values if name.startswith(PREFIX)]:
        del values[name]
        form = name.removeprefix(PREFIX)
        yield f"flag {form} has no effect: {removal_of(form, version)}; vLLM {version} rejects it"


def _successor(form: str, lifetime: Lifetime) -> str:
    replacement = REPLACEMENTS.get(form) or lifetime.replacement
    if replacement in ("", "unknown"):
        return ", without a replacement"
    return f"; use {replacement}"
