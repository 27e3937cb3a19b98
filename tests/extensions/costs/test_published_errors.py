"""Published runs on the cards that people own: errors and intervals on the half that only judges."""

from math import ceil, exp
from statistics import median

import msgspec
import pytest

from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.error_model import Evidence, KnownError, evidence_of
from app.extensions.costs.published_errors import (
    VERSION_GROWTH,
    WIDTHS,
    PublishedErrors,
    read_published,
)
from app.extensions.costs.repacks import find_config
from app.extensions.costs.situations import make_situation
from benchmarks.people import HELD_OUT, coverage_of, read_runs
from vllm_facts.devices import DEVICES
from workbench.runs.intervals import errors_of

SMALL = "openai/gpt-oss-20b"


def held_out() -> list[KnownError]:
    return msgspec.json.decode(HELD_OUT.read_bytes(), type=list[KnownError])


def test_runs_have_sources_devices_and_figures() -> None:
    runs = read_runs()
    assert len(runs) >= 200
    for run in runs:
        assert run.source.startswith("http")
        assert run.device in DEVICES
        assert run.tpot_ms or run.output_tput
        assert run.ttft_ms is None or run.ttft_ms > 0


def test_halves_share_no_server() -> None:
    runs = read_runs()
    held = {run.server for run in runs if run.is_held_out}
    fitted = {run.server for run in runs if not run.is_held_out}
    assert not held & fitted
    assert len(held) >= 30 <= len(fitted)


def test_held_out_runs_are_near_the_simulation() -> None:
    errors = sorted(abs(exp(-error.tpot) - 1) for error in held_out() if error.tpot is not None)
    assert len(errors) >= 60
    assert median(errors) <= 0.15
    assert errors[ceil(0.9 * len(errors)) - 1] <= 0.4


@pytest.mark.parametrize("figure", ["tpot", "ttft"])
@pytest.mark.parametrize("level", list(Evidence))
def test_intervals_of_each_level_contain_70_to_90_percent_of_held_out_runs(
    level: Evidence, figure: str
) -> None:
    coverage = coverage_of(held_out(), read_published(), figure=figure, level=level)
    assert coverage is not None and coverage.runs >= 10
    assert 0.7 <= coverage.inside <= 0.9


def test_a_level_without_measurements_has_the_widest_interval() -> None:
    situation = make_situation(find_config(SMALL), "gaudi3", EngineOptions())
    assert PublishedErrors([]).evidence(situation, "tpot") is Evidence.NONE
    spread = PublishedErrors([]).spread(situation, "tpot")
    _, greatest = WIDTHS["tpot"][Evidence.NONE]
    assert spread.half_width == greatest
    assert not spread.nearest


@pytest.mark.parametrize(
    ("model", "device", "evidence"),
    [
        (SMALL, "a100", "pair"),
        ("Qwen/Qwen3-30B-A3B", "rtx5090", "card"),
        (SMALL, "rtx5090", "card"),
        (SMALL, "rtx3090", "card"),
        (SMALL, "rtx6000-ada", "kernels"),
        (SMALL, "gaudi3", "none"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "h100", "pair"),
    ],
)
def test_intervals_name_their_evidence(model: str, device: str, evidence: str) -> None:
    situation = make_situation(find_config(model), device, EngineOptions())
    errors = errors_of(situation, concurrency=8, input_tokens=512, output_tokens=256)
    intervals = errors.intervals(ttft_s=0.1, e2e_s=1.0)
    assert intervals.evidence == evidence
    assert Evidence[evidence.upper()].text in str(intervals)
    assert bool(intervals.nearest) == (evidence != "none")


def test_interval_grows_with_the_versions_between_run_and_server() -> None:
    options = EngineOptions(vllm_version="0.11")
    situation = make_situation(find_config(SMALL), "a100", options)
    model = PublishedErrors(read_published())
    later = msgspec.structs.replace(situation, version=situation.version + 4)
    growth = model.spread(later, "tpot").half_width - model.spread(situation, "tpot").half_width
    assert growth == pytest.approx(4 * VERSION_GROWTH)


def test_evidence_is_symmetric_and_best_for_the_same_server() -> None:
    situations = [error.situation for error in read_published()[::10]]
    for situation in situations:
        assert evidence_of(situation, situation) is Evidence.PAIR
        for other in situations:
            assert evidence_of(situation, other) is evidence_of(other, situation)
