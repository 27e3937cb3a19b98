"""Speculative decoding in computed profiles: time, memory and acceptance of drafts."""

import json
from typing import Any

import pytest

from app.core.engine.batch import Batch
from app.core.engine.profile import Profile
from app.core.engine.step_cost import StepCost
from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.speculation import Speculation, read_speculation
from benchmarks.drafts import (
    FIT_CONCURRENCIES,
    HELD_OUT_CONCURRENCIES,
    DraftRun,
    drafts_of,
    reported_runs,
    simulated_gains,
    sweep_runs,
)
from config import ConfigError
from vllm_facts.known_models import config_of

SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
GIVEN = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3, **SYNTHETIC}


def speculation_of(**fields: object) -> Speculation:
    speculation = read_speculation(json.dumps(fields))
    assert speculation is not None
    return speculation


def profile(speculation: Speculation | None, model: str = "Qwen/Qwen3-32B") -> Profile:
    return datasheet_profile(
        config_of(model),
        "h200",
        EngineOptions(speculative_config=speculation),
        origin=f"model config {model}",
    )


def step_s(profile: Profile, sequences: int, drafts: int) -> float:
    step: Batch[Any] = Batch(
        tokens=sequences * (1 + drafts), sequences=sequences, context=1000 * sequences
    )
    return StepCost(profile.cost).seconds(step, 0.0, idle=False)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model"])
def test_each_draft_token_adds_a_forward_pass_and_memory(method: str) -> None:
    fields = {**GIVEN, "method": method, "model": "Qwen/Qwen3-0.6B"}
    plain = profile(None)
    few = profile(speculation_of(**fields))
    many = profile(speculation_of(**{**fields, "num_speculative_tokens": 6}))

    assert step_s(plain, 8, 0) < step_s(few, 8, 3) < step_s(many, 8, 6)
    assert few.engine.num_gpu_blocks < plain.engine.num_gpu_blocks


def test_draft_pass_reads_the_weights_of_the_draft_model() -> None:
    small = profile(speculation_of(**{**GIVEN, "method": "draft_model", "model": "qwen3-0.6b"}))
    large = profile(speculation_of(**{**GIVEN, "method": "draft_model", "model": "qwen3-4b"}))

    more_bytes = 2 * (4.0e9 - 0.6e9)
    assert step_s(large, 1, 3) - step_s(small, 1, 3) > 3 * more_bytes / 4.8e12


def test_parallel_drafting_shortens_a_step_with_several_drafts() -> None:
    passes = profile(speculation_of(**{**GIVEN, "num_speculative_tokens": 7}))
    one_pass = profile(
        speculation_of(**{**GIVEN, "num_speculative_tokens": 7, "parallel_drafting": True})
    )
    assert step_s(one_pass, 1, 7) < step_s(passes, 1, 7)


def test_only_synchronous_engines_wait_for_the_launch_of_a_drafter_pass() -> None:
    """The passes of seven drafts differ by 0.2 ms each; the engine's own overhead cancels."""

    def seven_drafts_s(version: str) -> float:
        seconds = []
        for count in (1, 7):
            fields = {**GIVEN, "num_speculative_tokens": count}
            options = EngineOptions(
                speculative_config=speculation_of(**fields), vllm_version=version
            )
            drafted = datasheet_profile(config_of("Qwen/Qwen3-32B"), "h200", options)
            seconds.append(step_s(drafted, 1, count))
        return seconds[1] - seconds[0]

    assert seven_drafts_s("0.13") - seven_drafts_s("0.22") == pytest.approx(6 * 0.2e-3, rel=0.2)


@pytest.mark.parametrize("device", ["h200", "mi300x"])
def test_verifying_drafts_is_faster_than_decoding_as_many_other_sequences(
    device: str,
) -> None:
    """With a mixture, verifying drafts costs less than as many tokens of other sequences."""

    def products_s(tokens: int, drafts: int) -> float:
        speculation = None
        if drafts:
            fields = {**GIVEN, "method": "ngram", "num_speculative_tokens": drafts}
            speculation = speculation_of(**fields)
        mixture = datasheet_profile(
            config_of("openai/gpt-oss-120b"),
            device,
            EngineOptions(speculative_config=speculation),
        )
        step: Batch[Any] = Batch(tokens=tokens)
        return StepCost(mixture.cost).seconds(step, 0.0, idle=False) - mixture.cost.base

    one_token_s = products_s(1, 0)
    verified_s = products_s(8, 7) - one_token_s
    other_tokens_s = products_s(8, 0) - one_token_s
    assert 0.5 * other_tokens_s < verified_s < 0.75 * other_tokens_s


def test_ngram_drafting_needs_no_memory_and_disables_async_scheduling() -> None:
    drafted = profile(speculation_of(method="ngram", num_speculative_tokens=3, **SYNTHETIC))
    plain = profile(None)

    assert drafted.engine.num_gpu_blocks == plain.engine.num_gpu_blocks
    assert not drafted.engine.async_scheduling
    assert step_s(drafted, 1, 3) > step_s(plain, 1, 3)


def test_drafts_of_a_known_model_have_the_published_acceptance_length() -> None:
    fields = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 7}
    drafted = profile(speculation_of(**fields), "openai/gpt-oss-120b")

    assert drafted.speculation is not None
    length = 1.0
    chance = 1.0
    for rate in drafted.speculation.acceptance:
        chance *= rate
        length += chance
    assert length == pytest.approx(2.56)
    assert "accepted length 2.56 (vLLM pull request 32628, MT-Bench)" in drafted.checked


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (
            {"method": "eagle3", "num_speculative_tokens": 3},
            "the accepted length of eagle3 with .* is unknown",
        ),
        ({**GIVEN, "method": "medusa"}, "the draft cost for method medusa is unknown"),
        ({**GIVEN, "method": "draft_model", "model": "qwen3-0.5b"}, "did you mean Qwen/Qwen3-0.6B"),
    ],
)
def test_speculation_without_a_known_cost_or_acceptance_is_rejected(
    fields: dict[str, object], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        profile(speculation_of(**fields))


def test_draft_count_without_a_published_acceptance_length_is_rejected() -> None:
    fields = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 9}
    with pytest.raises(
        ConfigError, match="accepted lengths of gpt-oss-120b are known only for 3 to 8 draft tokens"
    ):
        profile(speculation_of(**fields), "openai/gpt-oss-120b")


def test_no_tokens_are_drafted_without_a_speculative_config() -> None:
    assert read_speculation("{}") is None
    assert profile(None).speculation is None


def label_of(run: DraftRun) -> str:
    return f"{run.draft_count} by {run.method}"


@pytest.mark.parametrize("run", list(reported_runs()), ids=label_of)
def test_simulated_speculation_gain_matches_reported_runs(run: DraftRun) -> None:
    gain, _ = simulated_gains(run, None)
    assert (gain > 0) == (run.gain > 0)
    if run.method == "eagle":
        assert gain == pytest.approx(run.gain, abs=0.1)


def label_of_load(run: DraftRun) -> str:
    return f"{run.draft_count} with {run.server.concurrency} in flight"


QUICK_RUNS = [run for run in sweep_runs() if run.server.concurrency <= 64]
"""`wire/test_draft_signs.py` simulates the larger ones, too."""


@pytest.mark.parametrize("run", QUICK_RUNS, ids=label_of_load)
def test_simulated_and_measured_speculation_gains_have_the_same_sign(
    run: DraftRun,
) -> None:
    """The gain in tokens per second of all requests is a tie in one run: +0.3 %."""
    gain, output_gain = simulated_gains(run, None)
    assert run.output_gain is not None
    assert (gain > 0) == (run.gain > 0)
    if abs(run.output_gain) > 0.01:
        assert (output_gain > 0) == (run.output_gain > 0)


def test_one_draft_raises_the_throughput_under_load_but_seven_lower_it() -> None:
    loaded = [run for run in QUICK_RUNS if run.server.concurrency >= 16]
    losses = [simulated_gains(run, None)[1] for run in loaded if run.draft_count == 7]
    gains = [simulated_gains(run, None)[1] for run in loaded if run.draft_count == 1]

    assert all(-0.13 < loss < -0.02 for loss in losses)
    assert all(0.09 < gain < 0.18 for gain in gains)


def test_speculation_sweep_has_15_runs_that_were_not_used_for_the_fit() -> None:
    concurrencies = [run.server.concurrency for run in sweep_runs()]
    assert sum(number in HELD_OUT_CONCURRENCIES for number in concurrencies) == 15
    assert sum(number in FIT_CONCURRENCIES for number in concurrencies) == 12


def test_drafts_that_are_never_accepted_reduce_the_simulated_throughput() -> None:
    run = next(reported_runs())
    never = DraftRun(
        server=run.server,
        method="eagle3",
        draft_count=7,
        accepted_length=1.0,
        tpot_ms=15.0,
        plain_tpot_ms=7.0,
    )
    gain, _ = simulated_gains(never, None)
    assert gain < -0.2


def test_draft_count_and_acceptance_are_read_from_benchmark_notes() -> None:
    assert drafts_of("drafts=7 acceptance=2.31") == (7, 2.31)
    assert drafts_of("3 drafts, acceptance 40 %") == (3, pytest.approx(2.2))
    assert drafts_of("moe_tp=1 batch=128") is None
    assert drafts_of("drafts=0 acceptance=1") is None
