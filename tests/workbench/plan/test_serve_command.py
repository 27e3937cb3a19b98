"""The command of `vllm serve` for a planned fleet."""

import shlex
from pathlib import Path

import pytest

from app.core.settings import resolve, settings_type
from app.extensions.kv_offload.options import offload_options
from tests.callbacks import ignore
from tests.workbench.plan.test_plan import figures
from tests.workbench.runs.test_token_gaps import outcome_of
from vllm_facts.serve import settings_of
from workbench.plan.command import run
from workbench.plan.serve_command import serve_command
from workbench.runs.job import Job
from workbench.runs.summary import Judgement

LOAD = ["--rate", "2", "--seconds", "3", "--goodput", "ttft:2000", "tpot:50", "--processes", "1"]


def test_plan_prints_the_serve_command_and_the_number_of_replicas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--model", "qwen3-14b", "--device", "h100=2", "--tensor-parallel-size", "2"]
    options = ["--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.85", "--enforce-eager"]
    options += ["--max-cudagraph-capture-size", "2048"]
    assert run([*argv, *options, *LOAD, "--max-model-len", "8192", "--prefill-share", "0"]) == 0
    out = capsys.readouterr().out
    assert (
        "\n1 replica of 2 h100: vllm serve Qwen/Qwen3-14B --tensor-parallel-size 2"
        " --max-num-seqs 1024 --max-num-batched-tokens 8192 --max-model-len 8192"
        " --kv-cache-dtype fp8 --gpu-memory-utilization 0.85 --enforce-eager"
        " --max-cudagraph-capture-size 2048\n"
    ) in out


def test_step_limits_in_a_planned_serve_command_apply_to_one_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--model", "Qwen/Qwen3-30B-A3B-FP8", "--device", "h200=2", "--enable-expert-parallel"]
    argv += ["--tensor-parallel-size", "1", "--data-parallel-size", "2"]
    answer = figures(capsys, *argv, *LOAD, "--prefill-share=0")["loads"][0]["cheapest"]
    assert answer["devices_per_pod"] == 2
    assert answer["tensor_parallel_size"] == 1
    command = answer["serve_command"]
    assert "--data-parallel-size 2 --enable-expert-parallel --max-num-seqs 1024" in command
    assert "--max-num-batched-tokens 8192" in command
    assert "--tensor-parallel-size" not in command


def test_serve_commands_of_disaggregated_pods_have_a_kv_connector(
    tmp_path: Path,
) -> None:
    shape = tmp_path / "config.json"
    shape.write_text("{}")
    plan = outcome_of([(0.0, 10, 5)]).plan
    commands = [
        serve_command(
            Job(
                profile_name="auto",
                plan=plan,
                trace=None,
                recipe=None,
                judgement=Judgement(),
                model=str(model),
            ),
            transfers=transfers,
        )
        for model, transfers in ((shape, False), (tmp_path, True))
    ]
    limits = "--max-num-seqs 256 --max-num-batched-tokens 4096"
    assert commands[0] == f"vllm serve MODEL {limits}"
    assert commands[1].startswith(f"vllm serve {tmp_path} {limits} --kv-transfer-config '{{")
    assert '"kv_connector":"NixlConnector"' in commands[1]


def test_serve_command_of_a_plan_contains_the_planned_engine_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    drafts = (
        '{"method":"eagle3","model":"drafter","num_speculative_tokens":2,'
        '"rejection_sample_method":"synthetic","synthetic_acceptance_length":2}'
    )
    argv = ["--model", "Qwen/Qwen3-8B", "--device", "h100=2", "--prefill-share", "0", *LOAD]
    argv += ["--tensor-parallel-size", "1", "--speculative-config", drafts, "--loras", "2"]
    argv += ["--max-loras", "2", "--priorities", "chat=0@50%", "batch=1@50%"]
    answer = figures(capsys, *argv, "--kv-tiers", "cpu=200GB@50GB/s")["loads"][0]["cheapest"]

    command = answer["serve_command"]
    assert f"--speculative-config '{drafts}'" in command
    assert "--enable-lora --max-loras 2 --max-lora-rank 16" in command
    assert "--scheduling-policy priority" in command
    assert "--kv-offloading-size 186.3" in command


@pytest.mark.parametrize(
    ("flags", "policy", "threshold", "has_disk"),
    [
        (["cpu=200GB@50GB/s", "--kv-offload-policy", "arc"], "arc", 0, False),
        (["cpu=200GB@50GB/s", "--kv-offload-store-threshold", "2"], "lru", 2, False),
        (["cpu=200GB@50GB/s", "disk=1TB@5GB/s"], "lru", 0, True),
    ],
)
def test_serve_command_of_a_plan_starts_a_server_with_the_planned_tiers(
    flags: list[str],
    policy: str,
    threshold: int,
    has_disk: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--model", "Qwen/Qwen3-8B", "--device", "h100=2", "--prefill-share", "0", *LOAD]
    argv += ["--tensor-parallel-size", "1", "--kv-tiers", *flags]
    command = figures(capsys, *argv)["loads"][0]["cheapest"]["serve_command"]
    words = shlex.split(command)
    place = words.index("--kv-transfer-config")
    served = ["tiny", *words[place : place + 2]]
    settings = resolve(settings_of(served, {}, settings_type()), {}, ignore)
    options = offload_options(settings)
    assert (options.policy, options.store_threshold) == (policy, threshold)
    assert (options.disk_chunks > 0) is has_disk
    assert options.chunks == int(200e9 // (16 * 131_072))


@pytest.mark.parametrize(
    ("flags", "name"),
    [(["--loras", "2"], "loras"), (["--kv-tiers", "cpu=1GB@1GB/s"], "kv-tiers")],
)
def test_confidence_flag_is_rejected_if_the_prediction_error_is_unknown(
    flags: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--model", "Qwen/Qwen3-8B", "--device", "h100=2", *LOAD, "--confidence", "90%"]
    assert run([*argv, *flags]) != 0
    assert f"--confidence: the prediction error with --{name} is unknown" in capsys.readouterr().err
