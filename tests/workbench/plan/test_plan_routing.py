"""The routing policy of a plan, and what other policies would cost."""

from typing import Any

import msgspec
import pytest

from tests.workbench.plan.test_plan import figures
from workbench.plan.command import run
from workbench.plan.routing import FewestPods
from workbench.runs import simulate

ENGINE = ["--model", "qwen3-14b", "--device", "h100=2", "--tensor-parallel-size", "1"]
ENGINE += ["--prefill-share", "0", "--processes", "1", "--max-num-seqs", "256"]
ENGINE += ["--max-num-batched-tokens", "8192"]
LOAD = ["--rate", "60", "--seconds", "10", "--slo", "ttft_p95=600ms,tpot_p95=24ms"]


def simulated(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert simulate.run([*argv, "--json", "-"]) == 0
    return msgspec.json.decode(capsys.readouterr().out)


def test_least_requests_is_the_default_policy_of_plan_and_simulate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = figures(capsys, *ENGINE, *LOAD)["loads"][0]
    assert plan["cheapest"]["summary"]["policy"] == "least-requests"
    fleet = ["--rate", "30", "--seconds", "5", "--pods", "3"]
    default = simulated(capsys, *fleet)
    assert default["policy"] == "least-requests"
    assert default == simulated(capsys, *fleet, "--policy", "least-requests")


def test_plan_prints_its_policy_and_the_pods_of_random_routing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*ENGINE, *LOAD, "--why"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Cheapest, with least-requests routing only: h100 tp 1 x ")
    assert any(line.endswith("; least-requests") for line in out.splitlines())
    plan = figures(capsys, *ENGINE, *LOAD)["loads"][0]
    pods = plan["routing"]["least-requests"]
    random_pods = plan["routing"]["random"]
    assert plan["cheapest"]["pods"] == pods < random_pods
    warning = f"with random routing, the limits require h100 tp 1 x {random_pods}, "
    assert warning in out
    assert warning in plan["warnings"][0]
    assert f"random needs {random_pods} pods ({random_pods / pods - 1:+.0%} price)" in out
    assert "prefix-aware is least-requests here: no prompts share a prefix" in out
    # The pods are the fewest with random routing: a plan of this policy has as many.
    alone = figures(capsys, *ENGINE, *LOAD, "--policy", "random")["loads"][0]
    assert alone["cheapest"]["pods"] == random_pods
    assert alone["routing"]["least-requests"] == pods


def test_plan_of_shared_prefixes_shows_what_prefix_aware_routing_saves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ["--rate", "24", "--seconds", "10", "--slo", "ttft_p95=600ms,tpot_p95=40ms"]
    load += ["--input-tokens", "200", "--prefix-groups", "60", "--prefix-tokens", "4000"]
    plan = figures(capsys, *ENGINE, *load)["loads"][0]
    assert plan["routing"]["prefix-aware"] < plan["routing"]["least-requests"]


def test_routing_of_a_single_pod_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ENGINE, *LOAD, "--rate", "4", "--why"]) == 0
    line = "routing: least-requests; with these pods, every policy routes alike"
    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("answer", [1, 2, 5, 6, 7, 9, 12, 13])
@pytest.mark.parametrize("failed", [0, 5])
def test_search_finds_the_fewest_pods_from_any_start(answer: int, failed: int) -> None:
    search = FewestPods(6, 12, min(failed, answer - 1))
    runs = 0
    while (pods := search.next_pods()) is not None:
        assert 1 <= pods <= 12
        search.learn(pods, is_met=pods >= answer)
        runs += 1
    assert search.met == (answer if answer <= 12 else None)
    assert runs <= 7
