"""Specifications of inference-perf as loads."""

from pathlib import Path
from statistics import mean

import pytest

from config import ConfigError
from workbench.runs.traces import read_trace

STAGES = """\
load:
  type: {}
  interval: 5
  stages:
  - {{rate: 2, duration: 30}}
  - {{rate: 10, duration: 60}}
"""
RANDOM = """\
data:
  type: random
  input_distribution: {min: 10, max: 200, mean: 100, std: 20, total_count: 100}
  output_distribution: {min: 5, max: 50, mean: 20, std_dev: 4}
"""
SHARED = """\
data:
  type: shared_prefix
  shared_prefix: {num_groups: 3, system_prompt_len: 640, question_len: 50, output_len: 20}
"""
SERVER = "server:\n  type: vllm\n  base_url: http://localhost:8000\napi:\n  type: completion\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "specification.yml"
    path.write_text(text)
    return path


def test_load_stages_are_separated_by_the_configured_interval(
    tmp_path: Path,
) -> None:
    load = read_trace(written(tmp_path, STAGES.format("constant") + SERVER + RANDOM))

    assert len(load) == 2 * 30 + 10 * 60
    assert list(load.arrival_s[:3]) == [0.0, 0.5, 1.0]
    assert load.arrival_s[60] == 35.0
    assert load.arrival_s[61] == pytest.approx(35.1)


def test_prompt_and_reply_lengths_follow_the_configured_distribution(
    tmp_path: Path,
) -> None:
    load = read_trace(written(tmp_path, SERVER + RANDOM + STAGES.format("poisson")))

    assert mean(load.input_tokens) == pytest.approx(100, rel=0.05)
    assert mean(load.output_tokens) == pytest.approx(20, rel=0.05)
    assert min(load.input_tokens) >= 10 and max(load.input_tokens) <= 200
    assert len(load) == pytest.approx(660, rel=0.15)
    assert not any(30 <= arrival_s < 35 for arrival_s in load.arrival_s)


def test_requests_of_a_group_share_their_system_prompt(tmp_path: Path) -> None:
    load = read_trace(written(tmp_path, STAGES.format("constant") + SHARED))

    assert set(load.group) == {0, 1, 2}
    assert set(load.prefix_tokens) == {640}
    assert set(load.input_tokens) == {690}
    assert set(load.output_tokens) == {20}


def test_seed_of_the_specification_determines_the_load(tmp_path: Path) -> None:
    text = STAGES.format("poisson") + RANDOM
    first = read_trace(written(tmp_path, text))
    repeated = read_trace(written(tmp_path, text))
    other = read_trace(written(tmp_path, text.replace("load:\n", "load:\n  base_seed: 7\n")))
    assert first.arrival_s == repeated.arrival_s
    assert first.arrival_s != other.arrival_s


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (STAGES.format("concurrent") + RANDOM, "use --num-requests and --in-flight instead"),
        (STAGES.format("trace_replay") + RANDOM, "use one of constant, poisson"),
        (STAGES.format("constant") + "data:\n  type: billsum\n", "use one of random, shareGPT"),
        ("load:\n  stages: []\n" + RANDOM, "load.stages is missing"),
        ("load:\n  stages: [{rate: 1}]\n" + RANDOM, "stage 1 requires a rate and a duration"),
        ("load:\n  stages: [{rate: -1}]\n" + RANDOM, "Expected `float`"),
        (STAGES.format("constant"), "missing required field `data`"),
        ("load: [\n", "invalid inference-perf specification"),
        ("load: 2001-99-99\n", "invalid inference-perf specification"),
        ("load: !!bool x\n", "invalid inference-perf specification"),
        ("load: !!timestamp x\n", "invalid inference-perf specification"),
        ("load: !!int ''\n", "invalid inference-perf specification"),
        ('load: "\\ud800"\n', "invalid inference-perf specification"),
        (STAGES.format("constant") + RANDOM.replace("mean: 100", "mean: .inf"), "Expected `float`"),
        (
            STAGES.format("constant") + RANDOM.replace("std_dev: 4", "std_dev: .inf"),
            "Expected `float`",
        ),
        (STAGES.format("constant") + RANDOM.replace("min: 10", "min: 300"), "must not exceed max"),
        (
            STAGES.format("constant")
            + SHARED.replace("num_groups", "enable_multi_turn_chat: true, num_groups"),
            "use --turns and --think",
        ),
    ],
)
def test_unsupported_specification_is_rejected_with_a_one_line_error(
    tmp_path: Path, text: str, error: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=error) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)
