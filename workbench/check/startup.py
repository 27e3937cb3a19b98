"""The line that `serve` logs if the model would not fit on the device that it simulates."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from app.extensions.costs.settings import CostModelSettings
from config.declaration import ConfigError, UsageError
from config.sources import FlagValues
from vllm_facts.model_choice import choose_model
from vllm_facts.owned_devices import owned_device
from workbench.check.findings import Place
from workbench.check.memory import check_memory
from workbench.check.options import ReadOptions, supported_versions

if TYPE_CHECKING:
    from config import Settings

WARNINGS = frozenset(("C202", "D405", "M301", "M302", "M303"))


def memory_line(settings: Settings) -> str:
    """Returns the line about the memory; empty if the model fits, or nothing is known."""
    model = settings.model
    values: FlagValues = {
        "max-model-len": str(model.max_model_len),
        "tensor-parallel-size": str(model.tensor_parallel_size),
        "max-num-seqs": str(settings.scheduling.max_num_seqs),
        "max-num-batched-tokens": str(settings.steps.max_num_batched_tokens),
    }
    section = settings.section(CostModelSettings)
    version = section.profile_vllm_version or supported_versions()[-1]
    with suppress(ConfigError, UsageError):
        findings = check_memory(
            ReadOptions(version=version, table={}, words=[], values=values),
            choose_model(model.model, skips_check=True),
            device=owned_device(settings.steps.device),
            model_config=section.model_config,
            place=Place("serve"),
        )
        for each in findings:
            if each.code in WARNINGS:
                return f"vLLM would not start so, or it can fail ({each.code}): {each.message}"
    return ""
