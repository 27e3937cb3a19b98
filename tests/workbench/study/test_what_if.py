"""Changes of a measured fleet: `plan --what-if`."""

from __future__ import annotations

import pytest

from config.declaration import UsageError
from workbench.study.what_if import join_words, read_change

RATE = 4.0
PODS = 4


def test_rate_is_a_factor_or_a_number() -> None:
    assert read_change("rate x2", RATE, pods=PODS).rate_factor == 2.0
    assert read_change("rate=x0.5", RATE, pods=PODS).rate_factor == 0.5
    assert read_change("rate=10", RATE, pods=PODS).rate_factor == 2.5


@pytest.mark.parametrize(
    ("text", "factor"),
    [("rate*2", 2.0), ("ratex2", 2.0), ("rate+50%", 1.5), ("rate-25%", 0.75), ("RATE /2", 0.5)],
)
def test_rate_may_be_relative_to_the_measured_one(text: str, factor: float) -> None:
    change = read_change(text, RATE, pods=PODS)
    assert change.rate_factor == factor
    assert change.text == text


@pytest.mark.parametrize(
    ("text", "pods"),
    [("pods-1", 3), ("pods+2", 6), ("pods x2", 8), ("pods -50%", 2), ("pods/4", 1)],
)
def test_pods_may_be_relative_to_todays(text: str, pods: int) -> None:
    assert read_change(text, RATE, pods=PODS).pods == pods


def test_words_of_a_relative_change_need_no_quotes() -> None:
    assert join_words(["rate", "x2", "pods", "-1", "pods=3"]) == ["rate x2", "pods -1", "pods=3"]


def test_changes_in_one_text_apply_together() -> None:
    change = read_change("pods=3  rate x1.5 prefix-caching=off", RATE, pods=PODS)
    assert change.text == "pods=3 rate x1.5 prefix-caching=off"
    assert change.pods == 3
    assert change.rate_factor == 1.5
    assert change.engine.texts == {"enable-prefix-caching": False}
    assert not change.is_computed


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("device=h200", "device", "h200"),
        ("kv-cache-dtype=fp8", "kv-cache-dtype", "fp8"),
        ("model=Qwen/Qwen3-8B", "model", "Qwen/Qwen3-8B"),
        ("tensor_parallel_size=2", "tensor-parallel-size", "2"),
        ("tp=2", "tensor-parallel-size", "2"),
        ("--enforce-eager=on", "enforce-eager", True),
    ],
)
def test_changes_of_the_engine_are_flags_of_simulate(
    text: str, name: str, value: bool | str
) -> None:
    change = read_change(text, RATE, pods=PODS)
    assert change.engine.texts == {name: value}
    assert change.is_computed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        ("rate", "must be NAME=VALUE"),
        ("x2", "must be NAME=VALUE"),
        ("rate x", "rate x: '' must be a number"),
        ("rate xnan", "must be a number"),
        ("rate x50%", "rate x: '50%' must be a number"),
        ("pods/50%", "pods /: '50%' must be a number"),
        ("rate x1e9", "must be a number"),
        ("rate-100%", "rate -100%: no requests remain"),
        ("rate+1.5x", "must be a number"),
        ("pods-4", "pods: '0' must be a whole number"),
        ("pods x1.1", "pods: '4.4' must be a whole number"),
        ("double", "'double' must be NAME=VALUE, such as pods=3, pods-1, 'rate x2'"),
        ("rate=1e6", "at most 1000 times the measured rate"),
        ("pods=0", "pods: '0' must be a whole number"),
        ("pods=2 pods=3", "pods is specified twice"),
        ("prefill-share=2", "prefill-share: '2' must be a number from 0 to 1"),
        ("prefix-caching=perhaps", "prefix-caching must be on or off"),
        ("devise=h200", "did you mean device?"),
        ("json=a", "'json' cannot be changed"),
        ("no-enforce-eager=on", "cannot be changed"),
        ("slo=ttft_p99=1s", "cannot be changed"),
        ("seed=3", "cannot be changed"),
        ("a'b", "no closing quotation"),
        ("\x00=\x00", "cannot be changed"),
        ("x=" * 5000, "at most 4096 characters"),
    ],
)
def test_wrong_change_is_reported_with_its_text(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_change(text, RATE, pods=PODS)
    assert str(raised.value).startswith("--what-if ")
    assert message in str(raised.value)
    assert len(str(raised.value)) < 400
