"""What fits in the memory of a pod, as `simulate` and `plan` say it, and short names of models."""

import re

import msgspec
import pytest

from tests.workbench.plan.test_plan import figures
from vllm_facts.known_models import full_name
from workbench.plan.command import run
from workbench.runs import simulate

LOAD = ["--rate", "1", "--seconds", "5"]
LLAMA = ["--profile", "auto", "--device", "h100", "--model", "llama-3.3-70b"]


def test_simulate_prints_weights_cache_and_the_longest_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*LLAMA, "-tp", "4", *LOAD, "--max-model-len", "65536"]
    assert simulate.run(argv) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "memory" in line)
    match = re.fullmatch(
        r"memory of a pod: weights of 141\.\d GB on 4 devices, KV cache of ([\d,]+) tokens;"
        r" requests of up to 65,536 tokens, ([\d.]+) of that length at a time",
        line,
    )
    assert match is not None, line
    assert float(match[2]) == round(int(match[1].replace(",", "")) / 65536, 1)

    assert simulate.run([*argv, "--json", "-"]) == 0
    memory = msgspec.json.decode(capsys.readouterr().out)["memory"]
    assert memory["longest_request"] == 65536
    assert f"{memory['kv_tokens']:,}" == match[1]


def test_error_names_the_longest_length_that_fits_and_that_length_works(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*LLAMA, "-tp", "2", *LOAD]
    assert simulate.run([*argv, "--max-model-len", "131072"]) == 1
    error = capsys.readouterr().err
    match = re.search(
        r"does not fit in the KV cache of (\d+) tokens; use (--max-model-len \1)", error
    )
    assert match is not None, error
    assert simulate.run([*argv, *match[2].split()]) == 0
    capsys.readouterr()
    assert simulate.run([*argv, "--max-model-len", str(int(match[1]) + 17)]) == 1


def test_plan_prints_what_fits_and_the_length_that_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--model", "llama-3.3-70b", "--device", "h100=2", "-tp", "2", "4", *LOAD]
    argv += ["--prefill-share", "0", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192"]
    argv += ["--processes", "1", "--slo", "ttft_p95=2s", "--max-model-len", "100000"]
    assert run([*argv, "--why"]) == 0
    out = capsys.readouterr().out
    reason = figures(capsys, *argv)["loads"][0]["reasons"]["h100 tp 2"]
    assert reason.startswith("max-model-len 100000 does not fit in the KV cache of ")
    assert "\nmemory of a pod: weights of 141.1 GB on 4 devices, KV cache of " in out


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Llama 3.3 70B", "meta-llama/Llama-3.3-70B-Instruct"),
        ("qwen3-14b", "Qwen/Qwen3-14B"),
        ("gemma-2-9b", "google/gemma-2-9b-it"),
        ("llama-9", None),
    ],
)
def test_short_name_stands_for_the_chat_model(name: str, model: str | None) -> None:
    assert full_name(name) == model


def test_unknown_short_name_with_spaces_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--profile", "auto", "--device", "h100", "--model", "Llama 9 70B", *LOAD]
    assert simulate.run(argv) == 1
    assert "model Llama 9 70B: unknown model" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "size"), [("-tp", 2), ("-pp", 2)])
def test_short_flags_of_parallelism_work_as_in_serve(
    flag: str, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--profile", "auto", "--device", "h100", "--model", "qwen3-14b", *LOAD, "--json", "-"]
    assert simulate.run([*argv, flag, str(size)]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["memory"]["devices"] == size
