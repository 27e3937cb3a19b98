"""The line that `serve` logs if the model would not fit on the device that it simulates."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from app.extensions.costs.fit import shape_of
from app.extensions.costs.memory_verdict import ServerMemory, memory_verdicts
from app.extensions.costs.settings import CostModelSettings
from app.extensions.costs.version_rules import profile_version
from config.declaration import ConfigError, UsageError
from vllm_facts.devices import find_device
from vllm_facts.model_choice import choose_model

if TYPE_CHECKING:
    from config import Settings


def memory_line(settings: Settings) -> str:
    """Returns the line about the memory; empty if the model fits, or nothing is known."""
    model = settings.model
    section = settings.section(CostModelSettings)
    with suppress(ConfigError, UsageError):
        choice = choose_model(model.model, skips_check=True)
        server = ServerMemory(
            name=choice.name,
            shape=shape_of(choice, section.model_config),
            values={
                "max-model-len": str(model.max_model_len),
                "tensor-parallel-size": str(model.tensor_parallel_size),
                "max-num-seqs": str(settings.scheduling.max_num_seqs),
                "max-num-batched-tokens": str(settings.steps.max_num_batched_tokens),
            },
            version=profile_version(settings),
            device=find_device(settings.steps.device),
        )
        for verdict in memory_verdicts(server):
            if verdict.kind.is_flaw:
                code = verdict.kind.value
                return f"vLLM would not start so, or it can fail ({code}): {verdict.message}"
    return ""
