"""Power and energy of a run."""

from statistics import median

import msgspec
import pytest

from app.extensions.costs.power import DeviceWatts, energy_of
from app.extensions.costs.power_constants import MEASURED
from benchmarks.drafts import power_errors
from workbench.runs.simulate import run

LOAD = ["--rate", "4", "--seconds", "20"]


def test_power_grows_from_idle_to_full_load() -> None:
    watts = MEASURED["h100"]
    series = [watts.mean_w(running) for running in (0, 0.5, 1, 8, 128, 500)]

    assert series == sorted(series)
    assert series[0] == pytest.approx(92, abs=1)
    assert series[2] == 267
    assert series[4] == series[5] == 680


def test_simulated_power_of_a_measured_device_is_16_to_23_percent_too_low() -> None:
    errors = power_errors()
    assert median(errors[0]) == pytest.approx(-0.16, abs=0.01)
    assert median(errors[7]) == pytest.approx(-0.23, abs=0.01)


def test_simulated_energy_is_power_times_time() -> None:
    watts = DeviceWatts(low_w=300, high_w=300)
    energy = energy_of(watts, running=5, gpu_hours=2, output_tokens=1000)

    assert energy.kwh == pytest.approx(0.6)
    assert energy.joules_per_output_token == pytest.approx(2160)


def test_simulation_reports_energy_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*LOAD, "--json", "-"]) == 0
    plain = msgspec.json.decode(capsys.readouterr().out)
    assert run([*LOAD, "--json", "-", "--device-watts", "auto"]) == 0
    with_energy = msgspec.json.decode(capsys.readouterr().out)

    energy = with_energy.pop("energy")
    assert with_energy == plain
    assert energy["kwh"] == pytest.approx(energy["device_w"] * plain["gpu_hours"] / 1000)
    assert run([*LOAD, "--device-watts", "100-400"]) == 0
    assert "J per output token (16 % too low on H200, median of 9 runs)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--device-watts", "400"], "must be auto or LOW-HIGH in watts,"),
        (["--device-watts", "500-400"], "must be auto or LOW-HIGH in watts,"),
        (
            ["--device-watts", "auto", "--profile", "auto", "--device", "l40s"]
            + ["--model", "qwen3-8b"],
            "no power measurements under load are available for l40s; use one of h100, h200, b200",
        ),
    ],
)
def test_invalid_or_unmeasured_device_power_gives_a_one_line_error(
    flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*LOAD, *flags]) != 0
    _, err = capsys.readouterr()
    assert err.startswith("error: ") and err.count("\n") == 1
    assert error in err
