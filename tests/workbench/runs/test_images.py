"""Images in traces: their column, their time in the encoder, and profiles without an encoder."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from config import ConfigError
from workbench.engine.steps import read_profile
from workbench.load.loads import LoadTrace
from workbench.runs.disaggregation import Disaggregation
from workbench.runs.images import check_encoder
from workbench.runs.simulation import SimulationPlan, simulate
from workbench.runs.traces import read_trace

HEADER = "arrival_s,input_tokens,output_tokens,image_tokens\n"
EMBEDDING_S = 1e-4
PROFILE = read_profile("qwen3-14b-h100")
ENCODER = replace(PROFILE, cost=replace(PROFILE.cost, per_embedding=EMBEDDING_S, slowdown=0.0))


def load_of(tmp_path: Path, *rows: str) -> LoadTrace:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "\n".join(rows), encoding="utf-8")
    return read_trace(path)


def test_column_has_the_tokens_of_each_image(tmp_path: Path) -> None:
    load = load_of(tmp_path, "0,500,5,384", "0,500,5,", "1,2000,5,384+1564")
    assert load.images == [(384,), (), (384, 1564)]


@pytest.mark.parametrize(
    ("images", "problem"),
    [
        ("384+", "image_tokens '' must be a whole number"),
        ("cat", "image_tokens 'cat' must be a whole number"),
        ("0", "image_tokens '0' must be a whole number from 1"),
        ("400+100", r"image_tokens '400\+100' must have a sum less than input_tokens 500"),
    ],
)
def test_wrong_images_are_rejected(tmp_path: Path, images: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_of(tmp_path, f"0,500,5,{images}")


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("session,think_s", ("0,500,40,100,a,", ",1040,5,{images},a,1")),
        ("prefix_group,prefix_tokens", ("0,1040,5,{images},a,540",)),
    ],
)
def test_images_of_a_turn_lie_behind_the_tokens_that_it_shares(
    tmp_path: Path, columns: str, rows: Sequence[str]
) -> None:
    path = tmp_path / "trace.csv"
    header = f"{HEADER.strip()},{columns}"
    fits, overlaps = (
        "\n".join([header, *rows]).format(images=images) for images in ("200+299", "200+300")
    )
    path.write_text(fits, encoding="utf-8")
    assert read_trace(path).images[-1] == (200, 299)
    path.write_text(overlaps, encoding="utf-8")
    problem = "less than input_tokens 1040 without the 540 tokens of earlier turns"
    with pytest.raises(ConfigError, match=problem):
        read_trace(path)


@pytest.mark.parametrize(
    "split", [None, Disaggregation(prefill_pods=1, decode_pods=1, bytes_per_token=1)]
)
def test_first_token_comes_later_by_the_time_of_the_encoder(
    tmp_path: Path, split: Disaggregation | None
) -> None:
    load = load_of(tmp_path, "0,500,5,", "10,500,5,100", "20,500,5,100+200")
    plan = SimulationPlan(profile=ENCODER, pods=2, disaggregation=split)
    outcome = simulate(load, plan)
    plain, one, both = [
        first_s - arrival_s
        for first_s, arrival_s in zip(outcome.first_s, load.arrival_s, strict=True)
    ]
    assert one - plain == pytest.approx(100 * EMBEDDING_S)
    assert both - plain == pytest.approx(300 * EMBEDDING_S)


def test_images_without_an_encoder_are_rejected(tmp_path: Path) -> None:
    load = load_of(tmp_path, "0,500,5,100")
    check_encoder(load, ENCODER)
    with pytest.raises(ConfigError, match="image_tokens requires a model with an encoder"):
        check_encoder(load, PROFILE)
