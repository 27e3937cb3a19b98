"""LoRA adapters of simulated engines."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from app.extensions.costs.lora import LoraCosts
from workbench.runs.adapters import AdapterPlan, adapter_shares
from workbench.runs.simulate import run

ENGINE = ["--profile", "auto", "--device", "h100", "--model", "Qwen/Qwen3-8B"]
LOAD = ["--rate", "6", "--seconds", "60", "--json", "-"]


def figures(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run([*ENGINE, *LOAD, *argv]) == 0
    return msgspec.json.decode(capsys.readouterr().out)


def test_lora_adapters_make_steps_slower(capsys: pytest.CaptureFixture[str]) -> None:
    no_adapter = figures(capsys)
    one_adapter = figures(capsys, "--loras=1")
    many_adapters = figures(capsys, "--loras=16", "--max-loras=16", "--max-lora-rank=64")

    assert (
        no_adapter["tpot_s"]["mean"]
        < one_adapter["tpot_s"]["mean"]
        < many_adapters["tpot_s"]["mean"]
    )
    assert many_adapters["tpot_s"]["mean"] < 1.6 * no_adapter["tpot_s"]["mean"]


def test_requests_wait_for_a_free_adapter_slot(capsys: pytest.CaptureFixture[str]) -> None:
    few = figures(capsys, "--loras=8", "--max-loras=1")
    enough = figures(capsys, "--loras=8", "--max-loras=8")

    assert few["ttft_s"]["p90"] > 3 * enough["ttft_s"]["p90"]
    assert few["running"]["mean"] < few["requests"]


def test_more_and_larger_adapter_slots_leave_less_kv_cache_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = figures(capsys, "--loras=1")
    large = figures(capsys, "--loras=1", "--max-loras=32", "--max-lora-rank=256")
    assert large["kv_cache_usage"]["mean"] > 1.05 * small["kv_cache_usage"]["mean"]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--max-loras", "2"], "require --loras"),
        (["--loras", "4", "--max-loras", "4000", "--max-lora-rank", "512"], "--max-loras 4000"),
    ],
)
def test_invalid_adapter_flags_are_rejected_with_a_one_line_error(
    flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ENGINE, *LOAD, *flags]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert error in err


def test_adapter_simulation_is_rejected_if_the_profile_is_not_computed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*LOAD, "--loras", "2"]) != 0
    assert "--loras requires profile auto" in capsys.readouterr().err


def test_shares_of_adapters_weight_their_requests(capsys: pytest.CaptureFixture[str]) -> None:
    plan = AdapterPlan(
        shares=adapter_shares([("sql", 0.7), ("chat", 0.2)]),
        max_loras=1,
        max_rank=16,
        costs=LoraCosts(step_s=0.0, adapter_s=0.0, adapter_bytes=0),
    )
    rng = Random(1)
    drawn = Counter(plan.draw(rng) for _ in range(10_000))
    assert drawn["0"] == pytest.approx(7_000, rel=0.05)
    assert drawn["1"] == pytest.approx(2_000, rel=0.1)
    assert drawn[None] == pytest.approx(1_000, rel=0.15)
    one_popular = figures(capsys, "--loras", "a=97%", "b=1%", "c=1%", "d=1%", "--max-loras=1")
    equal = figures(capsys, "--loras", "a=25%", "b=25%", "c=25%", "d=25%", "--max-loras=1")
    assert one_popular["ttft_s"]["p90"] < equal["ttft_s"]["p90"]


def test_shares_of_adapters_apply_to_the_requests_of_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{number / 20},100,50" for number in range(200)]
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))

    def p90_ttft_s(*shares: str) -> Any:
        flags = ["--trace", str(trace), "--loras", *shares, "--max-loras=1", "--json", "-"]
        assert run([*ENGINE, *flags]) == 0
        return msgspec.json.decode(capsys.readouterr().out)["ttft_s"]["p90"]

    assert p90_ttft_s("a=99%", "b=1%") < p90_ttft_s("a=50%", "b=50%")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["a=70%", "b=40%"], "the shares must not exceed 100%"),
        (["a=70%", "a=20%"], "must have a unique name"),
        (["2", "a=20%"], "must be one number, or NAME=SHARE%"),
        (["0"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
        (["a=0%"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
        (["a=7"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
        (["a=nan%"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
        (["a=inf%"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
        (["a=-5%"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
        (["a=1e1%"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
        (["a=100.1%"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
        (["=5%"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
        (["a", "b=5%"], "must be a whole number from 1 to 10000, or NAME=SHARE%"),
    ],
)
def test_shares_of_adapters_have_to_belong_together(
    flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ENGINE, *LOAD, "--loras", *flags]) != 0
    assert error in capsys.readouterr().err
