"""`understudy plan`:

its choice beside an exhaustive search, its reasons, its files, and bad input.
"""

from itertools import count, product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.callbacks import ignore
from tests.workbench.runs.test_command import SHAPE
from workbench.plan import search
from workbench.plan.command import run
from workbench.runs import simulate

PRICES = {"h100": 2.5, "l40s": 2.0}
SIZES = (1, 2)
SEQUENCES = (256, 4)
BUDGETS = (8192, 1024)
LOAD = ["--seconds", "2", "--output-tokens", "50-150", "--input-tokens", "4000-16000"]
GRID = ["--device", *(f"{name}={price}" for name, price in PRICES.items())] + [
    *("--tensor-parallel-size", *map(str, SIZES), "--max-num-seqs", *map(str, SEQUENCES)),
    *("--max-num-batched-tokens", *map(str, BUDGETS), "--processes", "1"),
]


@pytest.fixture
def model(tmp_path: Path) -> list[str]:
    path = tmp_path / "config.json"
    path.write_bytes(msgspec.json.encode(SHAPE))
    return ["--model-config", str(path)]


def figures(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run([*argv, "--json", "-"]) == 0
    return msgspec.json.decode(capsys.readouterr().out)


@pytest.mark.timeout(600)  # hundreds of simulations, beside a busy machine
@pytest.mark.parametrize("limits", ["ttft:2000 tpot:30", "ttft:1000 tpot:20", "tpot:14"])
def test_chosen_fleet_costs_at_most_5_percent_more_than_the_optimum(
    model: list[str], capsys: pytest.CaptureFixture[str], limits: str
) -> None:
    load = [*model, *LOAD, "--rate", "8", "--goodput", *limits.split()]
    result = figures(capsys, *load, *GRID)["loads"][0]
    chosen = result["cheapest"]
    for (device, price), size, seqs, budget in product(PRICES.items(), SIZES, SEQUENCES, BUDGETS):
        for pods in count(1):
            if price * size * pods * 1.05 >= chosen["price_per_hour"]:
                break
            split = range(1, pods) if (seqs, budget) == (256, 8192) else ()
            fleets = [f"--prefill-pods {first} --decode-pods {pods - first}" for first in split]
            engine = f"--profile auto --device {device} --tensor-parallel-size {size} --max-num-seqs {seqs}"
            for fleet in [f"--pods {pods}", *fleets]:
                argv = f"{engine} --max-num-batched-tokens {budget} {fleet} --json -"
                assert simulate.run([*load, *argv.split()]) == 0
                good = msgspec.json.decode(capsys.readouterr().out)["goodput"]
                assert good["good"] < 0.99 * good["requests"], argv
    assert chosen["summary"]["goodput"]["good"] >= 0.99 * chosen["summary"]["requests"]
    assert chosen["summary"]["price"]["total"] > 0
    front = [(point["price_per_hour"], point["slo_share"]) for point in result["front"]]
    assert [chosen["price_per_hour"], chosen["slo_share"]] in map(list, front)
    assert front == sorted(front)
    shares = [share for _, share in front]
    assert shares == sorted(shares, reverse=True)


def test_search_bounds_do_not_change_the_chosen_fleet(
    model: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without bounds the same fleet is found, by more runs."""
    argv = [*model, *LOAD, "--rate", "3", "--goodput", "ttft:1000", "tpot:11", "e2el:3000", *GRID]
    bounded = figures(capsys, *argv)
    monkeypatch.setattr(search, "apply_bounds", ignore)
    free = figures(capsys, *argv)
    for bounded_load, free_load in zip(bounded["loads"], free["loads"], strict=True):
        assert bounded_load["cheapest"] == free_load["cheapest"]
        assert len(bounded_load["simulated"]) < len(free_load["simulated"])


def test_plan_search_allows_for_several_tokens_per_step_with_speculation(
    model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--seconds", "3", "--rate", "1", "--output-tokens", "100", "--input-tokens", "1000"]
    argv = [*model, *load, "--goodput", "tpot:4", "--device", "h100=2", "--processes", "1"]
    argv += ["--tensor-parallel-size", "1"]
    drafts = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 3,
    }
    flag = ["--speculative-config", msgspec.json.encode(drafts).decode()]
    assert run(argv) == 1
    assert "h100 tp 1 misses tpot" in capsys.readouterr().err
    assert figures(capsys, *argv, *flag)["loads"][0]["cheapest"]["pods"] == 1


def test_fleet_of_several_pods_with_tiny_caches_is_found(
    model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pod_flags = ["--num-gpu-blocks-override=700", "--max-model-len=10000", "--input-tokens=9000"]
    load_flags = ["--rate=3", "--seconds=8", "--goodput", "ttft:3000", "--prefill-share=0"]
    load = [*pod_flags, *load_flags]
    argv = [*model, *load, "--device", "h100=2", "--tensor-parallel-size", "1", "--processes", "1"]
    assert figures(capsys, *argv)["loads"][0]["cheapest"]["pods"] > 1


def test_plan_table_explains_the_result_of_each_device(
    model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = SHAPE | {"hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672}
    Path(model[1]).write_bytes(msgspec.json.encode(shape))
    picture = tmp_path / "plan.svg"
    argv = [
        *model,
        "--device",
        "h100=2",
        "h200=3",
        "b200=20",
        "--tensor-parallel-size",
        "1",
        "4",
        "64",
    ]
    argv += [
        "--rate",
        "2",
        "4",
        "--seconds",
        "5",
        "--goodput",
        "ttft:400",
        "tpot:22",
        "--slo",
        "e2e_mean=9s",
    ]
    assert run([*argv, "--processes", "1", "--plot", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert picture.read_text().startswith("<?xml")
    assert "h100: a sum over kernels" in err
    first, second = out.split("\n\n")
    rows: dict[str, str] = {}
    name = ""
    for line in second.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            name = cells[0].partition(" x")[0] or name  # a long reason is continued
            rows[name] = f"{rows.get(name, '')} {cells[-1]}"
    for name, reason in {
        "h100 tp 1": "weights of", "h100 tp 4": "cheapest", "h100 tp 64": "32 attention heads",
        "h200 tp 1": "even on an idle pod", "h200 tp 4": "50% more expensive", "b200 tp 4": "at least",
    }.items():  # fmt: skip
        assert reason in rows[name], rows[name]
    assert first.startswith("Cheapest for 2/s: h100 tp 4 x 1, ")
    assert second.startswith("Cheapest for 4/s: h100 tp 4 x")
    assert "\nrunner-up: h200 tp 4 x" in second and "--max-num-seqs 1024" in second


def test_error_for_an_unreachable_objective_names_the_nearest_fleet(
    model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "plan.json"
    argv = [
        *model,
        "--device",
        "h100=2",
        "--json",
        str(target),
        "--processes",
        "1",
        "--num-requests",
        "40",
    ]
    for slo, messages in {
        "--goodput tpot:1": "tp 8 misses tpot by . ms|even on an idle pod",
        "--slo ttft_p99=100ms --max-pods 2": "nearest: h100 tp 8 x 2 --max-num-seqs",
    }.items():
        assert run([*argv, *slo.split()]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1
        assert not target.exists()
        assert any(part in err for part in messages.split("|")), err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "gb200"], "has no list price; add gb200=PRICE"),
        (["--device", "h1000=2"], "did you mean h100?"),
        (["--device", "h100=1e-9"], "must be a number greater than 0"),
        (["--device", "h100=2", "h100=3"], "h100 has more than one price"),
        (["--pods", "3"], "cannot be used, because the plan command sets"),
        (["--backend", "spark=here:1"], "must be dask=HOST:PORT"),
        (["--attainment", "1.5"], "must be a number greater than 0, at most 1"),
        (["--model-config", "/nowhere.json"], "/nowhere.json cannot be read"),
        (
            ["--max-num-seqs", "16384", "--max-num-batched-tokens", "8"],
            "must not be less than max-num-seqs",
        ),
        (["--trace", "a.csv"], "cannot be combined with --trace"),
        (["--plot", "x.gif"], "must end with .png or .svg"),
        (["--goodput", "ttft:x"], "--goodput must be"),
    ],
)
def test_invalid_plan_flags_are_rejected_with_a_one_line_error(
    model: list[str], capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    argv = [*model, "--device", "h100=2", "--rate", "2", "--seconds", "3", "--goodput", "ttft:500"]
    assert run([*argv, *flags]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and message in err
