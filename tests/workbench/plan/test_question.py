"""A question without devices and prices, and the simulations that its answer takes."""

import shlex

import msgspec
import pytest

from config.declaration import COMMAND
from tests.workbench.plan.test_plan import figures
from workbench.plan.command import run
from workbench.plan.list_prices import LIST_PRICES
from workbench.runs import simulate

QUESTION = ["--model", "llama-3.3-70b", "--rate", "20", "--seconds", "20", "--processes", "1"]
QUESTION += ["--input-tokens", "2k", "--output-tokens", "300", "--slo", "ttft_p95=1s,tpot_p95=40ms"]
MAX_FLEETS = 120
"""Most simulated fleets: 98 at the time of writing, and 194 with a search that begins at one pod
and tries all limits of all engines.
"""


@pytest.mark.timeout(600)
def test_question_without_devices_takes_few_simulations_and_is_repeatable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = figures(capsys, *QUESTION)
    load = document["loads"][0]
    assert set(document["list_prices"]["prices"]) == set(LIST_PRICES)
    assert {name.partition(" ")[0] for name in load["reasons"]} == set(LIST_PRICES)
    assert len(load["simulated"]) <= MAX_FLEETS
    chosen = load["cheapest"]
    command = chosen["simulate_command"].removeprefix(f"{COMMAND} simulate ")
    assert simulate.run([*shlex.split(command), "--json", "-"]) == 0
    again = msgspec.json.decode(capsys.readouterr().out)
    for name in ("ttft_s", "tpot_s"):
        assert again[name]["p95"] == pytest.approx(chosen["summary"][name]["p95"], rel=0.01)
    assert again["tpot_s"]["p95"] <= 0.04 and again["ttft_s"]["p95"] <= 1


def test_question_about_one_device_shows_percentiles_policy_and_intervals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*QUESTION, "--device", "b300", "-tp", "2", "--prefill-share", "0", "--why"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("Cheapest, if its figures hold, which were never measured: b300 ")
    assert lines[1].startswith("warning: no server like this was measured (")
    [place] = [number for number, line in enumerate(lines) if " requests; ttft_p95" in line]
    head, columns = lines[place : place + 2]
    assert head.endswith("; ttft_p95 <= 1000 ms, tpot_p95 <= 40 ms; least-requests")
    assert "TTFT p95 | TPOT p95" in columns
    assert "80% intervals: TTFT " in out
    assert f"repeat: {COMMAND} simulate " in out


def test_load_with_only_a_rate_lasts_a_minute_and_is_repeatable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*QUESTION[:2], "--rate", "3", *QUESTION[6:], "--device", "b300", "-tp", "2"]
    chosen = figures(capsys, *argv, "--prefill-share", "0")["loads"][0]["cheapest"]
    assert 120 < chosen["summary"]["requests"] < 240
    command = chosen["simulate_command"].removeprefix(f"{COMMAND} simulate ")
    assert simulate.run([*shlex.split(command), "--json", "-"]) == 0
    again = msgspec.json.decode(capsys.readouterr().out)
    assert again["ttft_s"] == chosen["summary"]["ttft_s"]
