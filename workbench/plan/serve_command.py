"""Commands of `vllm serve` that start the pods of a planned fleet."""

import shlex
from pathlib import Path

import msgspec

from vllm_facts.accelerator import GIB
from vllm_facts.known_models import full_name
from workbench.engine.costs import AUTO_BACKEND, AUTO_DTYPE, MAX_CAPTURE_SIZE, EngineOptions
from workbench.runs.job import Job
from workbench.runs.kv_tiers import TierRules
from workbench.runs.simulation import SimulationPlan

CONNECTOR = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
"""`--kv-transfer-config` of pods that only prefill, and of the pods that continue their prompts."""
DISK_FOLDER = "/kv-cache"
"""Stands for the folder of a tier on disk."""
PLACEHOLDER = "MODEL"
"""Stands for a model that is only known by the path of its shape."""


def serve_command(job: Job, *, transfers: bool) -> str:
    """Returns the command of a pod; `transfers` is True for prefill and decode pods."""
    options = job.options
    words = ["vllm", "serve", _model_name(job.model), *_parallel_flags(options)]
    limits = job.plan.profile.engine
    words += ["--max-num-seqs", str(limits.max_num_seqs // options.data_parallel_size)]
    tokens = limits.max_num_batched_tokens // options.parallel_batches
    words += ["--max-num-batched-tokens", str(tokens)]
    if limits.max_model_len is not None:
        words += ["--max-model-len", str(limits.max_model_len)]
    if options.kv_cache_dtype != AUTO_DTYPE:
        words += ["--kv-cache-dtype", options.kv_cache_dtype]
    if options.quantization:
        words += ["--quantization", options.quantization]
    if options.gpu_memory_utilization is not None:
        words += ["--gpu-memory-utilization", f"{options.gpu_memory_utilization:g}"]
    words += _kernel_flags(options)
    if options.speculative_config is not None:
        words += ["--speculative-config", options.speculative_config.text]
    if not limits.enable_prefix_caching:
        words.append("--no-enable-prefix-caching")
    words += _feature_flags(job.plan)
    if transfers:
        words += ["--kv-transfer-config", CONNECTOR]
    return shlex.join(words)


def _kernel_flags(options: EngineOptions) -> list[str]:
    """Returns the flags of kernels and of how they are launched."""
    words = []
    if options.enforce_eager:
        words.append("--enforce-eager")
    if options.moe_backend != AUTO_BACKEND:
        words += ["--moe-backend", options.moe_backend]
    if options.max_cudagraph_capture_size != MAX_CAPTURE_SIZE:
        words += ["--max-cudagraph-capture-size", str(options.max_cudagraph_capture_size)]
    return words


def _feature_flags(plan: SimulationPlan) -> list[str]:
    """Returns the flags of adapters, priorities and offloaded keys and values."""
    words = []
    if plan.adapters is not None:
        words += ["--enable-lora", "--max-loras", str(plan.adapters.max_loras)]
        words += ["--max-lora-rank", str(plan.adapters.max_rank)]
    if plan.priorities:
        words += ["--scheduling-policy", "priority"]
    if len(plan.tiers) == 1 and plan.tier_rules == TierRules():
        words += ["--kv-offloading-size", f"{plan.tiers[0].size / GIB:.4g}"]
    elif plan.tiers:
        words += ["--kv-transfer-config", _offloading_connector(plan)]
    return words


def _offloading_connector(plan: SimulationPlan) -> str:
    """Returns the connector with the rules of its tiers, for which vLLM has no flags."""
    extra_config: dict[str, object] = {"cpu_bytes_to_use": int(plan.tiers[0].size)}
    rules = plan.tier_rules
    if rules.policy != TierRules().policy:
        extra_config["eviction_policy"] = rules.policy
    if rules.store_threshold:
        extra_config["store_threshold"] = rules.store_threshold
    if len(plan.tiers) > 1:
        extra_config["spec_name"] = "TieringOffloadingSpec"
        extra_config["secondary_tiers"] = [{"type": "fs", "root_dir": DISK_FOLDER}]
    connector = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra_config,
    }
    return msgspec.json.encode(connector).decode()


def _parallel_flags(options: EngineOptions) -> list[str]:
    """Returns the flags of parallelism that differ from one device."""
    words = []
    for flag, size in (
        ("--tensor-parallel-size", options.tensor_parallel_size),
        ("--pipeline-parallel-size", options.pipeline_parallel_size),
        ("--data-parallel-size", options.data_parallel_size),
    ):
        if size > 1:
            words += [flag, str(size)]
    if options.enable_expert_parallel:
        words.append("--enable-expert-parallel")
    return words


def _model_name(model: str) -> str:
    """Returns what `vllm serve` takes as the model: a name, or the folder of its files."""
    if not Path(model).exists():
        return full_name(model) or model
    if Path(model).is_dir():
        return model
    return PLACEHOLDER
