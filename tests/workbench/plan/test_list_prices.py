"""Built-in list prices, hints for the flags of limits, and lengths such as 2k."""

import pytest

from config.sizes import parse_count
from tests.workbench.plan.test_plan import figures
from vllm_facts.devices import DEVICES
from workbench.plan.command import run
from workbench.plan.list_prices import LIST_DATE, LIST_PRICES
from workbench.runs import simulate

LOAD = ["--model", "qwen3-14b", "-tp", "1", "--prefill-share", "0", "--processes", "1"]
LOAD += ["--max-num-seqs", "256", "--rate", "2", "--seconds", "5", "--slo", "tpot_p95=60ms"]
BUDGET = ["--max-num-batched-tokens", "8k"]


def test_device_without_a_price_has_the_dated_list_price(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = figures(capsys, *LOAD, *BUDGET, "--device", "h100", "l40s=0.5")
    prices = {
        fleet["device"]: fleet["price_per_hour"] / fleet["pods"]
        for fleet in document["loads"][0]["simulated"]
    }
    assert prices["l40s"] == 0.5
    assert document["list_prices"]["date"] == LIST_DATE
    assert "AWS EC2" in document["list_prices"]["source"]
    assert list(document["list_prices"]["prices"]) == ["h100"]
    assert document["list_prices"]["prices"]["h100"]["price"] == LIST_PRICES["h100"].price == 6.88

    assert run([*LOAD, *BUDGET, "--device", "h100"]) == 0
    out = capsys.readouterr().out
    assert "Cheapest: h100 tp 1 x 1, 6.88 per hour" in out
    assert (
        f"AWS list prices of {LIST_DATE}, dollars per hour on demand: h100 6.88 (p5.48xlarge)"
        in out
    )


@pytest.mark.parametrize("devices", [["h100=2.50"], ["h100", "h100=2.50"], ["h100=2.50", "h100"]])
def test_given_price_goes_before_the_list_price(
    devices: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = figures(capsys, *LOAD, *BUDGET, "--device", *devices)
    assert document["loads"][0]["cheapest"]["price_per_hour"] == 2.5
    assert "list_prices" not in document


def test_plan_over_time_names_the_date_of_its_list_prices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*LOAD, *BUDGET, "--device", "h100", "--over-time", "5s"]) == 0
    assert f"list prices of {LIST_DATE}" in capsys.readouterr().out


def test_list_prices_are_of_known_devices_and_have_sources() -> None:
    assert set(LIST_PRICES) <= set(DEVICES)
    assert all(price.server and 0 < price.price < 30 for price in LIST_PRICES.values())


@pytest.mark.parametrize(
    ("flag", "objective"),
    [
        ("--ttft-p95", "ttft_p95"),
        ("--tpot-p99", "tpot_p99"),
        ("--tpot_p99.9", "tpot_p99.9"),
        ("--p90-ttft", "ttft_p90"),
        ("--max-e2el", "e2e_p99"),
        ("--itl", "itl_p99"),
    ],
)
@pytest.mark.parametrize("command", [run, simulate.run])
def test_flag_of_a_latency_limit_gets_a_hint_to_slo(
    command: object, flag: str, objective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(command)
    for words in ([flag, "1s"], [f"{flag}=1s"]):
        assert command(["--rate", "1", *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: unknown flag {flag}; use --slo {objective}=DURATION")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--input-tokens", "2k"], "prompts of 2000 tokens"),
        (["--input-tokens", "2K"], "prompts of 2048 tokens"),
        (["--input-tokens", "1.5k:lognormal"], "prompts of 1500:lognormal:0.5 tokens"),
        (["--input-tokens", "1k-2k"], "prompts of 1000-2000 tokens"),
        (["--prefix-groups", "2", "--prefix-tokens", "1k"], "after 1000 of 2 groups"),
    ],
)
def test_lengths_take_thousands(
    flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate.run(["--rate", "2", "--seconds", "4", "--max-model-len", "16k", *flags]) == 0
    assert text in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize("text", ["1.0001k", "k", "-2k", "2 k", "1.5", "2kk", ""])
def test_counts_that_are_not_whole_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        parse_count(text)
