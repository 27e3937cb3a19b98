"""Autoscaling policies:

the examples of Kubernetes' documentation, bounds, and how policies are written.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.base.metrics.table import FIRST_TOKEN
from app.extensions.plugins.policies import Look
from app.shared.statistics import histogram_quantile
from workbench.load.autoscale_flags import read_policy
from workbench.load.hpa import replicas_for

USUAL = "hpa:metric=waiting,target=4,min=1,max=100"


def wanted(fields: str, pods: int, metric: float, looks: int, every_s: float = 60.0) -> list[int]:
    """Returns the number of pods after each look, while every pod has this metric."""
    decide = read_policy(USUAL + fields, {}).start(pods)
    counts = []
    for number in range(1, looks + 1):
        pods = decide(Look(number * every_s, pods, [{"waiting": metric}] * pods))
        counts.append(pods)
    return counts


def test_replica_count_follows_the_kubernetes_formula() -> None:
    assert [replicas_for(5, [value] * 5, 0.1) for value in (0.2, 0.05, 0.11, 0.091)] == [
        10,
        3,
        5,
        5,
    ]
    assert replicas_for(3, [0.5, 0.7, 0.9], 0.5) == 5
    assert replicas_for(3, [], 0.5) == 3


def test_fewer_pods_start_or_stop_if_some_pods_have_no_metrics() -> None:
    assert replicas_for(4, [8.0, 8.0], 4.0) == 4, (
        "two that load count as idle: the mean is on target"
    )
    assert replicas_for(4, [16.0, 16.0], 4.0) == 8
    assert replicas_for(8, [2.0] * 4, 4.0) == 6, "before a scale down they are on target"
    assert replicas_for(4, [5.0], 4.0) == 4, "idle ones would turn it into a scale down"


def test_scale_down_rates_match_the_kubernetes_documentation() -> None:
    at_most = ",window-down=0s,down=4/60s+10%/60s"
    assert wanted(at_most, 80, 0.1, 8) == [72, 64, 57, 51, 45, 40, 36, 32]
    assert wanted(at_most + ",select-down=min", 80, 0.1, 3) == [76, 72, 68]
    assert wanted(",window-down=0s,down=10%/60s+5/60s,select-down=min", 80, 0.1, 3) == [75, 70, 65]
    assert wanted(at_most, 80, 0.1, 8, every_s=15.0)[:5] == [72, 72, 72, 72, 64]
    assert wanted(",window-down=0s,select-down=disabled", 80, 0.1, 2) == [80, 80]


def test_default_scaling_behavior_matches_kubernetes() -> None:
    assert wanted("", 1, 1000.0, 6, every_s=15.0) == [5, 10, 20, 40, 80, 100]
    assert wanted("", 80, 0.0, 21, every_s=15.0) == [80] * 19 + [1, 1], (
        "five minutes since the start"
    )


def test_stabilization_windows_delay_scaling_up_and_scaling_down() -> None:
    down = read_policy(USUAL + ",window-down=60s", {}).start(2)
    values = (16.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    counts = []
    pods = 2
    for number, value in enumerate(values, 1):
        pods = down(Look(number * 15.0, pods, [{"waiting": value}] * pods))
        counts.append(pods)
    assert counts == [6, 6, 6, 6, 1, 1], (
        "the peak of 8 (of which 6 were allowed) holds for a minute"
    )
    up = read_policy(USUAL + ",window-up=30s", {}).start(2)
    assert [up(Look(number * 15.0, 2, [{"waiting": 16.0}] * 2)) for number in (1, 2)] == [2, 6]


@given(
    st.lists(st.tuples(st.floats(0.1, 400), st.lists(st.floats(0, 50), max_size=6)), max_size=30),
    st.integers(1, 9),
    st.integers(0, 9),
    st.sampled_from(["", ",up=1/60s,down=50%/30s", ",select-up=min,window-up=30s,window-down=0s"]),
)
def test_replica_count_stays_within_its_bounds(
    looks: list[tuple[float, list[float]]], min_pods: int, more_pods: int, rules: str
) -> None:
    policy = read_policy(
        f"hpa:metric=running,target=3,min={min_pods},max={min_pods + more_pods}{rules}", {}
    )
    pods = min_pods
    at_s = 0.0
    decide = policy.start(min_pods)
    for gap_s, values in looks:
        at_s += gap_s
        pods = decide(Look(at_s, pods, [{"running": value} for value in values[:pods]]))
        assert min_pods <= pods <= min_pods + more_pods


def test_schedule_and_plugin_policies_set_the_number_of_pods() -> None:
    schedule = read_policy("schedule:0s=2,1m=8,5m=3", {})
    assert (schedule.min_pods, schedule.max_pods) == (2, 8)
    assert [schedule.start(2)(Look(at_s, 2, ())) for at_s in (0.0, 59.0, 60.0, 1e6)] == [2, 2, 8, 3]

    def add_one_pod(look: Look) -> int:
        return look.pods + 1

    def start_policy(pods: int) -> Callable[[Look], int]:
        return add_one_pod

    plugin_policy = read_policy("own:min=2,max=5", {"own": start_policy})
    assert (plugin_policy.min_pods, plugin_policy.max_pods) == (2, 5)
    assert plugin_policy.start(2)(Look(0.0, 3, ())) == 4


def test_histogram_quantiles_match_prometheus() -> None:
    """Half of four values in the bucket from 0.1 to 0.25 and one in that to 0.5."""
    assert histogram_quantile(0.5, [0.2, 0.2, 0.2, 0.3], FIRST_TOKEN) == pytest.approx(
        0.1 + 0.15 * 2 / 3
    )
    assert histogram_quantile(0.9, [0.2, 0.2, 0.2, 0.3], FIRST_TOKEN) == pytest.approx(
        0.25 + 0.25 * 0.6
    )
    assert histogram_quantile(0.5, [], FIRST_TOKEN) == 0.0
    assert histogram_quantile(0.5, [9999.0], FIRST_TOKEN) == 2560


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"{USUAL},min=2", "'min=2' must have the form NAME=VALUE with a unique NAME"),
        ("hpa", "must have the form NAME=VALUE"),
        ("hpa:metric=queue,target=4,min=1,max=2", "metric: invalid choice: 'queue'"),
        (
            "hpa:metric=waiting,target=0,min=1,max=2",
            "hpa: target: '0' must be a number from 0.001 to",
        ),
        ("hpa:metric=waiting,target=4,min=3,max=2", "min 3 must not exceed max 2"),
        (
            "hpa:metric=waiting,target=4,min=0,max=2",
            "hpa: min: '0' must be a whole number from 1 to 10000",
        ),
        ("hpa:metric=waiting,target=4,min=1", "arguments are required: max"),
        (f"{USUAL},top=1", "unknown flag top"),
        (f"{USUAL},tolerance=inf", "hpa: tolerance: 'inf' must be a number from 0 to"),
        (f"{USUAL},select-up=most", "hpa: select-up: invalid choice: 'most'"),
        (f"{USUAL},up=4", "hpa: up: '4' must consist of rates such as 100%/15s"),
        (f"{USUAL},up=4/1h", "with periods of at most 30m"),
        ("schedule:1m=2", "must begin with 0s=PODS"),
        ("schedule:0s=2,0ms=3", "must not repeat a time"),
        ("schedule:0s=0", "'0' must be a whole number from 1"),
        ("other:min=1,max=2", "'other' must be one of hpa, schedule"),
    ],
)
def test_invalid_autoscaling_policies_are_rejected(text: str, rule: str) -> None:
    with pytest.raises((ValueError, ArgumentTypeError), match=rule):
        read_policy(text, {})
