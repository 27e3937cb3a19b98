"""`understudy plan` with price lists, nodes, several models, and models that share a fleet."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.workbench.runs.test_command import SHAPE
from workbench.plan.command import run

SLO = ["--goodput", "ttft:2000", "tpot:60", "--seconds", "3", "--prefill-share", "0"]
ENGINE = ["--tensor-parallel-size", "1", "--max-num-seqs", "256", "--processes", "1"]
FEW = [*SLO, *ENGINE, "--max-num-batched-tokens", "8192"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "large"
    path.mkdir()
    (path / "config.json").write_bytes(msgspec.json.encode(SHAPE))
    return str(path)


@pytest.fixture
def small_model(tmp_path: Path) -> str:
    path = tmp_path / "small"
    path.mkdir()
    shape = SHAPE | {"num_hidden_layers": SHAPE["num_hidden_layers"] // 2}
    (path / "config.json").write_bytes(msgspec.json.encode(shape))
    return str(path)


def figures(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run([*FEW, *argv, "--json", "-"]) == 0
    return msgspec.json.decode(capsys.readouterr().out)


def test_each_price_of_a_device_is_planned_as_a_separate_fleet(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = ["--device", "h100=2.5", "h100@spot=1"]
    result = figures(capsys, f"--model={model}", "--rate=4", *prices)["loads"][0]

    assert result["cheapest"]["device"] == "h100@spot"
    assert result["reasons"]["h100@spot tp 1"] == "cheapest"
    assert result["reasons"]["h100 tp 1"] == "at least 150% more expensive"


def test_price_of_a_fleet_includes_all_devices_of_its_nodes(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = ["--device", "h100=2.5", "h100@node=2/8"]
    result = figures(capsys, f"--model={model}", "--rate=4", *prices)["loads"][0]

    assert result["cheapest"]["device"] == "h100"
    on_node = [fleet for fleet in result["simulated"] if fleet["device"] == "h100@node"]
    assert on_node and {fleet["price_per_hour"] for fleet in on_node} == {16.0}


def test_pod_does_not_span_nodes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--tensor-parallel-size", "1", "4"]
    argv = ["--model", model, "--rate", "4", "--device", "h100=2/2"]
    result = figures(capsys, *argv, *sizes)["loads"][0]
    assert "a pod has 4 devices and a node 2" in result["reasons"]["h100 tp 4"]


def test_planner_chooses_the_cheaper_of_two_models(
    model: str, small_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--rate", "30", "--device", "h100=2.5", "--output-tokens", "400"]
    result = figures(capsys, "--model", model, small_model, *load)["loads"][0]

    assert result["reasons"]["h100 tp 1 small"] == "cheapest"
    assert small_model in result["cheapest"]["serve_command"]


def test_models_planned_together_are_placed_on_one_node_if_they_fit(
    model: str, small_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--rate", "4", "6", "--together", "--device", "h100=2.5", "h100@node=1/4"]
    result = figures(capsys, "--model", model, small_model, *load)

    names = [part["load"] for part in result["loads"]]
    assert names == [f"{model}, 4/s", f"{small_model}, 6/s"]
    cheapest = result["together"][0]
    assert cheapest["device"] == "h100@node"
    assert cheapest["devices"] <= cheapest["rented_devices"] == 4
    assert cheapest["price_per_hour"] == 4.0
    assert cheapest["engines"] == ["h100@node tp 1 large", "h100@node tp 1 small"]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (
            ["--device", "h100@=2"],
            "must contain only letters, digits, dots, and dashes in the name after @",
        ),
        (["--device", "h100=2/0"], "must be a whole number from 1 to 1024"),
        (
            ["--device", "h100=2", "h100=1/8"],
            "h100 has more than one price; give each price list a name",
        ),
        (["--device", "h100=2", "--together", "--rate", "1", "2"], "got 1 models and 2 loads"),
    ],
)
def test_invalid_offers_are_rejected_with_a_one_line_error(
    model: str, flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--model", model, "--rate", "4", *FEW, *flags]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert error in err
