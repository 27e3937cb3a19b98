"""Speculative decoding in computed profiles: time, memory and acceptance of drafts."""

import json
from typing import Any

import pytest

from app.core.engine.batch import Batch
from app.core.engine.profile import Profile
from app.core.engine.step_cost import StepCost
from app.extensions.lab.costs.datasheet import datasheet_profile
from app.extensions.lab.costs.engine_options import EngineOptions
from app.extensions.lab.costs.known_models import read_model_config
from app.extensions.lab.costs.speculation import Speculation, read_speculation
from benchmarks.drafts import DraftRun, drafts_of, reported_runs, simulated_gain
from config import ConfigError

SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
GIVEN = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3, **SYNTHETIC}


def speculation_of(**fields: object) -> Speculation:
    speculation = read_speculation(json.dumps(fields))
    assert speculation is not None
    return speculation


def profile(speculation: Speculation | None, model: str = "Qwen/Qwen3-32B") -> Profile:
    return datasheet_profile(
        read_model_config(model),
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


def test_parallel_drafting_takes_one_pass() -> None:
    passes = profile(speculation_of(**{**GIVEN, "num_speculative_tokens": 7}))
    one_pass = profile(
        speculation_of(**{**GIVEN, "num_speculative_tokens": 7, "parallel_drafting": True})
    )
    assert step_s(one_pass, 1, 7) < step_s(passes, 1, 7)


def test_ngram_drafting_has_no_weights_and_disables_async_scheduling() -> None:
    drafted = profile(speculation_of(method="ngram", num_speculative_tokens=3, **SYNTHETIC))
    plain = profile(None)

    assert drafted.engine.num_gpu_blocks == plain.engine.num_gpu_blocks
    assert not drafted.engine.async_scheduling
    assert step_s(drafted, 1, 3) > step_s(plain, 1, 3)


def test_published_acceptance_lengths_are_the_default_of_their_model() -> None:
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
            "no accepted length is known for eagle3",
        ),
        ({**GIVEN, "method": "medusa"}, "method medusa: the cost of its drafts is unknown"),
        ({**GIVEN, "method": "draft_model", "model": "qwen3-0.5b"}, "did you mean Qwen/Qwen3-0.6B"),
    ],
)
def test_speculation_without_a_known_cost_or_acceptance_is_rejected(
    fields: dict[str, object], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        profile(speculation_of(**fields))


def test_more_draft_tokens_than_published_are_rejected() -> None:
    fields = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 9}
    with pytest.raises(ConfigError, match="accepted lengths of gpt-oss-120b are known for 3 to 8"):
        profile(speculation_of(**fields), "openai/gpt-oss-120b")


def test_no_tokens_are_drafted_without_a_configuration() -> None:
    assert read_speculation("{}") is None
    assert profile(None).speculation is None


def label_of(run: DraftRun) -> str:
    return f"{run.draft_count} by {run.method}"


@pytest.mark.parametrize("run", list(reported_runs()), ids=label_of)
def test_simulated_speculation_gain_matches_reported_runs(run: DraftRun) -> None:
    gain = simulated_gain(run, None)
    assert (gain > 0) == (run.gain > 0)
    if run.method == "eagle":
        assert gain == pytest.approx(run.gain, abs=0.1)


def test_rarely_accepted_drafts_reduce_the_throughput() -> None:
    run = next(reported_runs())
    never = DraftRun(
        server=run.server,
        method="eagle3",
        draft_count=7,
        accepted_length=1.0,
        tpot_ms=15.0,
        plain_tpot_ms=7.0,
    )
    assert simulated_gain(never, None) < -0.2


def test_benchmark_notes_contain_draft_count_and_acceptance() -> None:
    assert drafts_of("drafts=7 acceptance=2.31") == (7, 2.31)
    assert drafts_of("3 drafts, acceptance 40 %") == (3, pytest.approx(2.2))
    assert drafts_of("moe_tp=1 batch=128") is None
    assert drafts_of("drafts=0 acceptance=1") is None
