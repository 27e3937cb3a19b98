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


def test_a_combination_has_the_moment_at_which_it_last_came_about() -> None:
    loras = requests()
    loras.move(1, "a", "waiting")
    loras.move(1, "a", "running")
    loras.move(2, "a", "running")
    loras.move(3, "b", "running")
    loras.move(2, "a", None)  # the same adapters run
    assert series(loras) == [("", "a", 2), ("", "", 3), ("a", "", 5), ("a,b", "", 7)]
    loras.move(1, "a", None)
    loras.move(3, "b", None)
    loras.move(3, "b", None)
    assert series(loras)[-2:] == [("b", "", 8), ("", "", 9)]


def test_the_first_series_go_when_there_are_too_many() -> None:
    loras = requests()
    for number in range(MOST_SERIES):
        loras.move(number, f"a{number}", "running")
    found = series(loras)
    assert len(found) == MOST_SERIES
    assert found[0][0] == "a0" and found[-1][0].endswith(f",a{MOST_SERIES - 1}")


def test_memory_is_bounded_however_long_the_names_are() -> None:
    loras = requests()
    for number in range(MOST_SERIES):
        loras.move(number, f"{number}" * 10_000, "running")
        loras.move(number, f"{number}" * 10_000, None)
        assert loras.size_bytes <= loras.limit_bytes
    loras.move(-1, "a" * LIMIT_BYTES, "running")
    assert [len(running) for running, _, _ in series(loras)] == [LIMIT_BYTES]
