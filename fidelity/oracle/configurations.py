"""The configurations of the server: flags of `vllm serve` and variables, equal for both servers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fidelity.oracle.cases import MODEL

ROOT = Path(__file__).parents[2]
STORE_NAME = ".oracle"
STORE = Path(os.environ.get("ORACLE_STORE") or ROOT / STORE_NAME).resolve()
"""Folder of all files that the oracle makes; not committed.

The variable ORACLE_STORE selects another folder, which several checkouts can share.
"""
MODEL_FOLDER = STORE / "models" / MODEL
ADAPTER_FOLDER = STORE / "models" / "adapter"
COMMON_FLAGS = (
    *("--served-model-name", MODEL),
    *("--max-model-len", "2048"),
    *("--max-num-seqs", "8"),
    *("--block-size", "32"),
    *("--num-gpu-blocks-override", "256"),
    *("--dtype", "float32"),
    "--enforce-eager",
)
COMMON_VARIABLES = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONHASHSEED": "0"}
CONSTRAINED_THOUGHTS = ("--structured-outputs-config", '{"enable_in_reasoning": true}')
"""A constraint also determines the thought, which a random model would never end."""
TOOL_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A server that some cases need.

    Attributes:
        reason: What the flags change for clients.
        flags: Flags besides `COMMON_FLAGS`.
        variables: Environment variables besides `COMMON_VARIABLES`.
    """

    name: str
    reason: str
    flags: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


CONFIGURATIONS = {
    configuration.name: configuration
    for configuration in (
        Configuration(
            "base",
            "Development routes, scale-out routes, tools, cached tokens in usage.",
            (
                "--enable-prompt-tokens-details",
                "--enable-scale-out",
                *TOOL_FLAGS,
                "hermes",
            ),
        ),
        Configuration(
            "guarded",
            "Keys, a path of a proxy, origins of browsers, request ids; no development routes.",
            (
                *("--api-key", "oracle-key", "oracle-key-2"),
                *("--root-path", "/oracle"),
                *("--allowed-origins", '["https://a.example"]'),
                *("--allowed-methods", '["GET", "POST"]'),
                "--allow-credentials",
                "--enable-request-id-headers",
                "--enable-force-include-usage",
                "--enable-server-load-tracking",
                *("--max-logprobs", "3"),
            ),
            {"VLLM_SERVER_DEV_MODE": "0"},
        ),
        Configuration(
            "lora",
            "Adapters that come and go, priorities, stored responses.",
            (
                "--enable-lora",
                *("--max-loras", "2"),
                *("--max-cpu-loras", "4"),
                *("--max-lora-rank", "8"),
                *("--lora-modules", f"first={ADAPTER_FOLDER}"),
                *("--scheduling-policy", "priority"),
            ),
            {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_ENABLE_RESPONSES_API_STORE": "1"},
        ),
        Configuration(
            "llama3_json",
            "Tool calls as JSON objects.",
            (*TOOL_FLAGS, "llama3_json"),
        ),
        Configuration(
            "pythonic",
            "Tool calls as Python.",
            (*TOOL_FLAGS, "pythonic"),
        ),
        Configuration(
            "qwen3",
            "Thoughts of a model that may leave them out.",
            ("--reasoning-parser", "qwen3", *CONSTRAINED_THOUGHTS, *TOOL_FLAGS, "hermes"),
        ),
        Configuration(
            "deepseek_r1",
            "Thoughts of a model that begins with one.",
            ("--reasoning-parser", "deepseek_r1", *CONSTRAINED_THOUGHTS),
        ),
        Configuration(
            "embed",
            "Embeddings, scores and ranks.",
            ("--runner", "pooling", "--convert", "embed"),
        ),
        Configuration(
            "classify",
            "Classes. The model has no weights for them, which old releases require.",
            ("--runner", "pooling", "--convert", "classify", "--load-format", "dummy"),
        ),
    )
}
