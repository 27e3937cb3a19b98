"""The clocks of tool and server are aligned by the fastest ways in both directions."""

import pytest

from config import ConfigError
from tests.workbench.judge.synthetic import SERVER_ZERO_S, pair_of
from workbench.judge.clocks import align


def test_clock_difference_is_bounded_by_the_fastest_requests() -> None:
    ways = [(0.010, 0.003), (0.0004, 0.020), (0.030, 0.0006), (0.005, 0.005)]
    pairs = [pair_of(number, number * 1.0, ways_s=way) for number, way in enumerate(ways)]
    alignment = align("x.json", pairs, has_unix_times=False)
    assert alignment.half_width_s == pytest.approx(0.0005, abs=1e-6)
    assert abs(alignment.to_server(2.0) - (SERVER_ZERO_S + 2.0)) <= alignment.half_width_s + 1e-6
    assert alignment.drift == 0.0
    assert not alignment.is_same_clock


def test_clocks_three_seconds_apart_are_not_treated_as_the_same_clock() -> None:
    pairs = [pair_of(number, 1.8e9 + number, difference_s=3.0) for number in range(5)]
    alignment = align("x.json", pairs, has_unix_times=True)
    assert not alignment.is_same_clock
    assert alignment.difference_s == pytest.approx(3.0, abs=0.001)


def test_unix_times_of_the_same_machine_need_no_correction() -> None:
    ways = (0.0002, 0.0008)
    pairs = [pair_of(number, 1.8e9 + number, ways, difference_s=0.0) for number in range(5)]
    alignment = align("x.json", pairs, has_unix_times=True)
    assert alignment.is_same_clock and alignment.difference_s == 0.0
    assert alignment.half_width_s == pytest.approx(0.0005, abs=1e-5)


def test_estimated_clock_drift_aligns_the_times_of_the_whole_run() -> None:
    # The server's clock gains 20 ms in 100 s, much more than the ways take.
    pairs = [pair_of(number, float(number), drift=200e-6) for number in range(101)]
    alignment = align("x.json", pairs, has_unix_times=False)
    assert alignment.drift == pytest.approx(200e-6, abs=25e-6)
    for moment_s in (0.0, 50.0, 100.0):
        true_s = SERVER_ZERO_S + moment_s * (1 + 200e-6)
        assert abs(alignment.to_server(moment_s) - true_s) < 0.0012


def test_clock_change_during_the_run_is_an_error_that_names_two_requests() -> None:
    pairs = [pair_of(number, float(number)) for number in range(10)]
    pairs += [
        pair_of(number, float(number), difference_s=SERVER_ZERO_S + 5) for number in range(10, 20)
    ]
    with pytest.raises(
        ConfigError, match=r"clocks .* do not match: request \d+ and request \d+ .*ms"
    ):
        align("x.json", pairs, has_unix_times=False)


def test_failed_requests_are_ignored_in_the_clock_alignment() -> None:
    pairs = [pair_of(number, float(number)) for number in range(3)]
    for pair in pairs:
        pair.tool.error = "timeout"
    with pytest.raises(ConfigError, match="no request was completed"):
        align("x.json", pairs, has_unix_times=False)
    with pytest.raises(ConfigError, match="no request was completed"):
        align("x.json", [], has_unix_times=False)
