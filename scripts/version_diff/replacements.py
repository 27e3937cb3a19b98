"""What replaces an option, variable or metric, as far as texts in vLLM's sources say so."""

import ast
import re
from collections.abc import Iterator

from scripts.version_diff.package import Package
from scripts.version_diff.values import called_name, keyword_of

FOLDERS = (
    "vllm/engine/",
    "vllm/entrypoints/",
    "vllm/config",
    "vllm/envs.py",
    "vllm/utils/argparse_utils.py",
    "vllm/v1/metrics/",
    "vllm/platforms/",
)
NAME = r"--[a-z][\w.-]*\w|VLLM_[A-Z0-9_]*[A-Z0-9]|vllm:\w+"
ADVICE = re.compile(
    r"(?:\buse|favor of|replaced (?:by|with)|renamed to|superseded by)\s+(?:the\s+)?"
    rf"[`'\"]*({NAME})",
    re.IGNORECASE,
)
DEPRECATION = re.compile(r"deprecat|removed|renamed|replaced|instead|no longer", re.IGNORECASE)

METRICS = {
    "vllm:avg_generation_throughput_toks_per_s": "rate(vllm:generation_tokens_total[1m])",
    "vllm:avg_prompt_throughput_toks_per_s": "rate(vllm:prompt_tokens_total[1m])",
    "vllm:gpu_prefix_cache_hit_rate": (
        "rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])"
    ),
    "vllm:gpu_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "vllm:spec_decode_draft_acceptance_rate": (
        "rate(vllm:spec_decode_num_accepted_tokens_total[5m])"
        " / rate(vllm:spec_decode_num_draft_tokens_total[5m])"
    ),
    "vllm:tokens_total": "vllm:prompt_tokens_total + vllm:generation_tokens_total",
}
"""Replacements that vLLM's sources do not name: what its dashboards and metrics.md use instead."""


def replacements_in(package: Package) -> dict[str, str]:
    """Returns new names by old ones, from texts such as "--a is deprecated, use --b"."""
    replacements: dict[str, str] = {}
    for folder in FOLDERS:
        for module in package.modules(folder):
            for owner, text in _texts(module.tree):
                advice = ADVICE.search(text)
                if advice is None or DEPRECATION.search(text) is None:
                    continue
                new_name = _spelled(advice[1])
                old_names = [*map(_spelled, re.findall(NAME, text[: advice.start()])), *owner]
                for old_name in old_names:
                    if old_name != new_name:
                        replacements[old_name] = new_name
    return replacements


def _texts(tree: ast.AST) -> Iterator[tuple[list[str], str]]:
    """Yields texts, and the option or metric that a text describes, if that is known."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            help_text = keyword_of(node, "help") or keyword_of(node, "documentation")
            if help_text is not None:
                yield list(_described(node)), _text(help_text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield [], " ".join(node.value.split())
        elif isinstance(node, ast.JoinedStr):
            yield [], _text(node)


def _described(call: ast.Call) -> Iterator[str]:
    arguments = [*call.args, *filter(None, [keyword_of(call, "name")])]
    if called_name(call) == "add_argument" or keyword_of(call, "name") is not None:
        for argument in arguments:
            if isinstance(argument, ast.Constant) and re.fullmatch(NAME, str(argument.value)):
                yield _spelled(str(argument.value))


def _text(node: ast.expr) -> str:
    parts = [str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return " ".join("".join(parts).split())


def _spelled(name: str) -> str:
    """Returns an option with hyphens; the keys after it keep their underscores."""
    if not name.startswith("--"):
        return name
    option, dot, keys = name.partition(".")
    return option.replace("_", "-") + dot + keys
