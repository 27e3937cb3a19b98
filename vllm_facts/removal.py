"""Releases of vLLM that removed an option or a JSON key, and the replacements."""

from vllm_facts.history import Lifetime, read_history

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
    "--task": "--runner and --convert",
}
"""Replacements that vLLM's sources do not name beside the option."""

TASK = "--task"
TASK_ADVICE = {
    "auto": "remove --task",
    "classify": "use --runner pooling --convert classify",
    "draft": "use --runner draft",
    "embed": "use --runner pooling --convert embed",
    "embedding": "use --runner pooling --convert embed",
    "generate": "use --runner generate",
    "reward": "use --runner pooling",
    "score": "use --runner pooling --convert classify",
    "transcription": "use --runner generate",
}
"""Value of `--task` -> advice. vLLM converts no model that pools by itself."""


def task_advice(task: str, version: str) -> str:
    """Returns the advice for a value of `--task`; empty for an unknown one."""
    if task == "reward" and "reward" in read_history().options["--convert"].choices_in(version):
        return "use --runner pooling --convert reward"
    return TASK_ADVICE.get(task, "")


def removal_of(form: str, version: str) -> str:
    """Returns the release that removed an option or key, and its replacement; empty for others."""
    lifetime = _past_lifetime(form, version)
    if lifetime is None:
        return ""
    replacement = successor_of(form, lifetime)
    successor = ", without a replacement"
    if replacement:
        successor = f"; use {replacement}"
    return f"vLLM removed it in {lifetime.gone_in}{successor}"


def replacement_of(form: str, version: str) -> str:
    """Returns what replaces a removed option or key; empty without a replacement."""
    lifetime = _past_lifetime(form, version)
    if lifetime is None:
        return ""
    return successor_of(form, lifetime)


def successor_of(form: str, lifetime: Lifetime) -> str:
    """Returns what replaces an option or key with this lifetime; empty without a replacement."""
    positive = form.replace("--no-", "--", 1)
    replacement = REPLACEMENTS.get(form) or REPLACEMENTS.get(positive) or lifetime.replacement
    if replacement == "unknown":
        return ""
    return replacement


def _past_lifetime(form: str, version: str) -> Lifetime | None:
    """Returns the lifetime of an option or key that is gone in a version."""
    history = read_history()
    table = history.options
    if "." in form:
        table = history.keys
    lifetime = table.get(form) or table.get(form.replace("--no-", "--", 1))
    if lifetime is None or not lifetime.is_gone_in(version):
        return None
    return lifetime
