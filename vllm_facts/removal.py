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
    "--task": "--runner pooling, and --convert for a generative model",
}
"""Replacements that vLLM's sources do not name beside the option."""


def removal_of(form: str, version: str) -> str:
    """Returns the release that removed an option or key, and its replacement; empty for others."""
    history = read_history()
    table = history.keys if "." in form else history.options
    lifetime = table.get(form)
    if lifetime is None:
        form = form.replace("--no-", "--", 1)
        lifetime = table.get(form)
    if lifetime is None or not lifetime.is_gone_in(version):
        return ""
    return f"vLLM removed it in {lifetime.gone_in}{_successor(form, lifetime)}"


def _successor(form: str, lifetime: Lifetime) -> str:
    replacement = REPLACEMENTS.get(form) or lifetime.replacement
    if replacement in ("", "unknown"):
        return ", without a replacement"
    return f"; use {replacement}"
