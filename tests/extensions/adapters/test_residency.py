"""Metrics of the adapters in memory, and the ranks in their files."""

import os
from pathlib import Path

from app.core.engine.lora import Adapter, AdapterMemory, LoRARegistry
from app.extensions.adapters.config_file import CONFIG, MAX_CONFIG_BYTES
from app.extensions.adapters.residency import LoraResidency, rank_of


def test_adapter_rank_is_unknown_if_the_config_file_is_unusable(
    tmp_path: Path,
) -> None:
    file = tmp_path / CONFIG
    file.write_text('{"r": 8}')
    assert rank_of(str(tmp_path)) == 8
    file.write_text('{"r": 8, "more": "' + "x" * MAX_CONFIG_BYTES + '"}')
    assert rank_of(str(tmp_path)) is None
    file.write_text("[" * 100_000)
    assert rank_of(str(tmp_path)) is None
    file.unlink()
    os.mkfifo(file)  # opening it to read would wait for a writer
    assert rank_of(str(tmp_path)) is None


def test_metrics_report_the_memory_tier_of_each_adapter(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 64, "peft_type": "LORA"}')
    registry = LoRARegistry([Adapter("a", str(tmp_path)), Adapter("b", "/nowhere")])
    server = {"model_name": "m", "engine": "0"}
    residency = LoraResidency(
        AdapterMemory(registry, 1, 2),
        lambda name: rank_of(registry.adapter(name).path) or 16,
        server,
        lambda: 0.0,
    )
    text = residency.render()
    engine_label, same = 'engine="0"', 'model_name="m",pinned="false"'
    for line in (
        f'vllm:lora_adapter_loaded{{adapter_name="a",{engine_label},level="cpu",{same},rank="64"}} 1.0',
        f'vllm:lora_adapter_loaded{{adapter_name="b",{engine_label},level="gpu",{same},rank="16"}} 1.0',
        f'vllm:num_gpu_loaded_lora_adapters{{{engine_label},model_name="m"}} 1.0',
        f'vllm:num_cpu_loaded_lora_adapters{{{engine_label},model_name="m"}} 2.0',
        f'vllm:max_gpu_lora_adapters{{{engine_label},model_name="m"}} 1.0',
        f'vllm:lora_adapter_load_seconds_count{{{engine_label},model_name="m",transition="load"}} 2.0',
        f'vllm:lora_adapter_load_seconds_count{{{engine_label},model_name="m",transition="activate"}} 2.0',
    ):
        assert f"{line}\n" in text
    registry.unload("b")
    text = residency.render()
    assert (
        'adapter_name="b"' not in text
        and f'num_cpu_loaded_lora_adapters{{{engine_label},model_name="m"}} 1.0' in text
    )
