"""Measured cells: the options of their servers, and the mean over the client's rounds."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import cells
from benchmarks.cells import Cell, mean_of_rounds
from benchmarks.recipes import as_started, recipe_of

CELL = Cell(
    file="cells-2.csv",
    model="minimax-m2.5",
    device="b200",
    tensor_parallel=4,
    ep=1,
    dp_attention=1,
    input_tokens=1024,
    output_tokens=1024,
    concurrency=64,
    vllm="0.19.0",
    client="inferencemax",
    measured="2026-04-03",
    ttft_ms=100.0,
    tpot_ms=10.0,
)


def test_first_benchmark_round_contributes_one_tenth_of_the_mean() -> None:
    assert mean_of_rounds([10.0, 10.0, 1.0, 1.0, 1.0, 1.0], 2) == pytest.approx(1.9)
    assert mean_of_rounds([3.0, 5.0], 2) == 4.0


def test_options_that_change_on_a_day_reach_the_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated = []

    def simulate(folder: Path, a_place: int, cell: Cell) -> tuple[float, float]:
        simulated.append(cell.options.max_cudagraph_capture_size)
        return 1.0, 1.0

    monkeypatch.setattr(cells, "_simulated_ms", simulate)
    kimi = replace(CELL, model="kimi-k2.5", vllm="0.17.0")
    nvfp4 = replace(CELL, model="minimax-m2.5-nvfp4")
    for cell, measured in (
        (kimi, "2026-03-11"),
        (kimi, "2026-04-20"),
        (nvfp4, "2026-04-03"),
        (nvfp4, "2026-04-08"),
    ):
        cells.simulated_ms(Path(), 1, replace(cell, measured=measured))
    assert simulated == [512, 2048, 512, 2048]


def test_blackwell_uses_an_fp8_kv_cache_from_vllm_0_19_onward() -> None:
    assert CELL.options.kv_cache_dtype == "fp8"
    assert replace(CELL, vllm="0.17.0").options.kv_cache_dtype == "auto"
    assert replace(CELL, device="h200").options.kv_cache_dtype == "auto"
    assert replace(CELL, client="unknown").options.kv_cache_dtype == "auto"


def test_first_minimax_servers_on_blackwell_ran_experts_in_triton() -> None:
    assert CELL.options.moe_backend == "auto"
    assert replace(CELL, vllm="0.17.0").options.moe_backend == "triton"


@pytest.mark.parametrize(
    ("changes", "has_expert_ranks", "capture_size"),
    [
        ({}, False, 2048),
        ({"ep": 4}, True, 2048),
        ({"vllm": "0.17.0"}, True, 512),
        ({"device": "h200", "vllm": "0.16.0"}, False, 512),
        ({"device": "h200", "vllm": "0.18.0", "tensor_parallel": 8}, True, 512),
        ({"model": "kimi-k2.5", "ep": 4, "measured": "2026-03-11"}, False, 512),
        ({"model": "kimi-k2.5", "measured": "2026-04-20"}, False, 2048),
        ({"model": "gpt-oss-120b"}, False, 2048),
        ({"model": "llama-3.1-70b-fp8"}, False, 512),
    ],
)
def test_start_script_determines_the_engine_options_of_a_measurement(
    changes: dict[str, object], has_expert_ranks: bool, capture_size: int
) -> None:
    options = replace(CELL, **changes).options
    assert options.enable_expert_parallel == has_expert_ranks
    assert options.max_cudagraph_capture_size == capture_size


@pytest.mark.parametrize(
    ("changes", "has_tf32"),
    [
        ({}, False),
        ({"measured": "2026-04-22"}, True),
        ({"measured": ""}, True),
        ({"measured": "", "concurrency": 256}, False),
        ({"measured": "", "tensor_parallel": 2}, False),
        ({"measured": "", "tensor_parallel": 2, "input_tokens": 8192}, True),
        ({"measured": "", "vllm": "0.17.0"}, False),
        ({"measured": "2026-04-22", "device": "h200"}, False),
    ],
)
def test_later_scripts_of_minimax_on_blackwell_compute_float32_with_tensor_cores(
    changes: dict[str, object], has_tf32: bool
) -> None:
    assert replace(CELL, **changes).options.has_tf32 == has_tf32


def test_data_parallel_attention_ranks_have_one_device_each() -> None:
    ranks = replace(CELL, dp_attention=4, ep=16).options
    assert (ranks.tensor_parallel_size, ranks.data_parallel_size) == (1, 4)
    assert ranks.enable_expert_parallel
    assert CELL.options.tensor_parallel_size == 4


@pytest.mark.parametrize(
    ("changes", "ranks", "devices"),
    [
        ({"dp_attention": 4, "ep": 16}, 1, 4),
        ({"dp_attention": 4, "ep": 16, "model": "minimax-m2.5-nvfp4"}, 1, 4),
        ({"dp_attention": 2, "ep": 4, "tensor_parallel": 2, "device": "b300"}, 1, 2),
        (
            {"dp_attention": 2, "ep": 4, "tensor_parallel": 2, "model": "minimax-m2.5-nvfp4"},
            2,
            1,
        ),
        ({"dp_attention": 2, "model": "qwen3-235b-fp8", "device": "h200"}, 2, 4),
    ],
)
def test_minimax_is_data_parallel_only_where_its_script_is(
    changes: dict[str, object], ranks: int, devices: int
) -> None:
    changes = {"measured": "2026-04-22"} | changes
    options = as_started(replace(CELL, **changes)).options
    assert (options.data_parallel_size, options.tensor_parallel_size) == (ranks, devices)
    assert options.enable_expert_parallel == (changes.get("ep", 1) != 1)


def test_config_file_of_llama_on_h100_was_not_read() -> None:
    llama = replace(CELL, model="llama-3.1-70b-fp8", vllm="")
    caches = {
        device: replace(llama, device=device).options.kv_cache_dtype
        for device in ("h100", "h200", "b200")
    }
    assert caches == {"h100": "bfloat16", "h200": "auto", "b200": "auto"}


def test_steps_on_blackwell_have_the_default_size_of_versions_before_0_28() -> None:
    first_kimi = replace(CELL, model="kimi-k2.5", vllm="0.17.0", measured="2026-03-11")
    first_minimax = replace(CELL, vllm="0.17.0")
    assert recipe_of(first_kimi).max_num_batched_tokens == 8192
    assert recipe_of(first_minimax).max_num_batched_tokens == 8192
    assert recipe_of(CELL).max_num_batched_tokens == 2048
