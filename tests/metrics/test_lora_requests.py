"""Which adapters run and wait: a series per combination, the latest last."""

from __future__ import annotations

from itertools import count

from prometheus_client.parser import text_string_to_metric_families

from app.base.metrics.lora import LIMIT_BYTES, MOST_SERIES, LoraRequests


def requests() -> LoraRequests:
    """Each change comes a second after the one before."""
    ticks = count(1)
    return LoraRequests(2, lambda: float(next(ticks)))


def series(loras: LoraRequests) -> list[tuple[str, str, float]]:
    """Running, waiting and moment of every series."""
    (family,) = text_string_to_metric_families(loras.render())
    assert {sample.labels["max_lora"] for sample in family.samples} == {"2"}
    return [
        (sample.labels["running_lora_adapters"], sample.labels["waiting_lora_adapters"], sample.value)
        for sample in family.samples
    ]


def test_in_the_beginning_nothing_runs_and_nothing_waits() -> None:
    assert series(requests()) == [("", "", 1)]


def test_a_combination_has_the_moment_at_which_it_last_came_about() -> None:
    loras = requests()
    loras.waiting("a", 1)
    loras.waiting("a", -1)
    loras.running("a", 2)
    loras.running("b", 1)
    loras.running("a", -1)  # the same adapters run
    assert series(loras) == [("", "a", 2), ("", "", 3), ("a", "", 4), ("a,b", "", 6)]
    loras.running("a", -1)
    loras.running("b", -1)
    assert series(loras)[-2:] == [("b", "", 7), ("", "", 8)]


def test_the_first_series_go_when_there_are_too_many() -> None:
    loras = requests()
    for number in range(MOST_SERIES):
        loras.running(f"a{number}", 1)
    found = series(loras)
    assert len(found) == MOST_SERIES
    assert found[0][0] == "a0" and found[-1][0].endswith(f",a{MOST_SERIES - 1}")


def test_memory_is_bounded_however_long_the_names_are() -> None:
    loras = requests()
    for number in range(MOST_SERIES):
        loras.running(f"{number}" * 10_000, 1)
        loras.running(f"{number}" * 10_000, -1)
        assert loras.size_bytes <= loras.limit_bytes
    loras.running("a" * LIMIT_BYTES, 1)
    assert [len(running) for running, _, _ in series(loras)] == [LIMIT_BYTES]
