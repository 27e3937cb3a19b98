"""One decision per request: header, rules, chance; and settings that change while the server runs."""

from __future__ import annotations

import gc
import json
import tracemalloc
from random import Random
from typing import Any

import pytest

from app.serving.faults.injector import FaultInjector
from config.live import LiveSettings
from config.loader import load
from tests.faults.asking import Moment, asking


def planned(**values: Any) -> tuple[FaultInjector, LiveSettings]:
    live, plan = LiveSettings(load((), {})), FaultInjector(Random(1), Moment())
    live.subscribe(plan.on_settings)
    live.change({name.replace("_", "-"): value for name, value in values.items()})
    return plan, live


def status(plan: FaultInjector, **headers: str) -> int | None:
    fault = plan.fault_for(asking(**headers))
    return fault.error.status if fault and fault.error else None


def test_nothing_goes_wrong_unless_it_is_asked_for() -> None:
    plan, _ = planned()
    assert plan.is_quiet and plan.fault_for(asking()) is None


def test_a_change_of_the_rate_holds_from_the_next_request_on() -> None:
    plan, live = planned(failure_injection_rate=100, failure_types=["rate_limit"])
    assert not plan.is_quiet and {status(plan) for _ in range(10)} == {429}
    live.change({"failure-types": ["server_error", "model_not_found"]})
    assert {status(plan) for _ in range(40)} == {503, 404}
    live.change({"failure-injection-rate": 0})
    assert plan.is_quiet and {status(plan) for _ in range(10)} == {None}


def test_the_same_seed_draws_the_same_failures() -> None:
    def drawn() -> list[int | None]:
        plan, _ = planned(failure_injection_rate=50)
        return [status(plan) for _ in range(50)]

    assert drawn() == drawn() and len(set(drawn())) > 3


def test_changed_rules_count_anew_and_others_go_on() -> None:
    rules = [{"action": "error", "nth": 2}]
    plan, live = planned(fault_rules=rules)
    assert status(plan) is None
    live.change({"failure-injection-rate": 0, "fault-rules": rules})
    assert status(plan) == 500
    live.change({"fault-rules": [{"action": "error", "nth": 2, "status": 502}]})
    assert [status(plan) for _ in range(3)] == [None, 502, None]
    plan.restart()
    assert [status(plan) for _ in range(2)] == [None, 502]
    live.change({"fault-rules": None})
    assert plan.is_quiet


def test_rules_that_stay_in_the_list_go_on_counting() -> None:
    once = {"action": "error", "status": 502, "times": 1}
    plan, live = planned(fault_rules=[once])
    assert [status(plan), status(plan)] == [502, None]
    live.change({"fault-rules": [{"action": "error", "status": 429, "times": 2}, once]})
    assert status(plan) == 429
    live.change({"fault-rules": [once, {"action": "error", "status": 429, "times": 2}, once]})
    assert [status(plan) for _ in range(4)] == [429, 502, None, None]


def test_the_strongest_source_decides() -> None:
    rules = [{"action": "error", "status": 502}]
    plan, live = planned(fault_rules=rules, failure_injection_rate=100, failure_types=["rate_limit"])
    assert status(plan, X_Return_Error="422", X_Fault="error;status=503") == 422
    assert status(plan, X_Fault="error;status=503") == 503
    assert status(plan) == 502
    live.change({"fault-rules": None})
    assert status(plan) == 429


def test_a_header_that_does_not_strike_leaves_it_to_the_others() -> None:
    plan, _ = planned(fault_rules=[{"action": "error", "status": 502}])
    assert status(plan, X_Fault="error;status=503;nth=5") == 502
    fault = plan.fault_for(asking(X_Fault="rate-limit"))
    assert fault and fault.error and fault.error.status == 502
    assert "x-ratelimit-limit-requests" in fault.headers


def test_empty_headers_say_nothing() -> None:
    plan, _ = planned()
    assert plan.fault_for(asking(X_Fault="", X_Return_Error="")) is None


@pytest.mark.parametrize("header", [{"X_Fault": "explode"}, {"X_Return_Error": "soon"}])
def test_a_header_that_makes_no_sense_is_a_bad_request(header: dict[str, str]) -> None:
    plan, _ = planned()
    fault = plan.fault_for(asking(**header))
    assert fault and fault.error and fault.error.status == 400
    assert next(iter(header)).replace("_", "-") in fault.error.message


def test_requests_of_one_client_with_the_same_header_are_counted_together() -> None:
    plan, _ = planned()

    def ask(client: str, text: str = "error;times=2") -> bool:
        return plan.fault_for(asking(client=client, X_Fault=text)) is not None

    assert [ask("a"), ask("a"), ask("a"), ask("b"), ask("a")] == [True, True, False, True, False]
    assert ask("a", "error;times=2;name=another test")
    plan.restart()
    assert ask("a")


def test_scripts_of_headers_are_remembered_up_to_a_limit_of_memory() -> None:
    plan, _ = planned()
    for number in range(2000):
        plan.fault_for(asking(X_Fault=f"error;times=1;name={number}"))
        assert plan.size_bytes <= plan.limit_bytes
    assert plan.fault_for(asking(X_Fault="error;times=1;name=1999")) is None
    assert plan.fault_for(asking(X_Fault="error;times=1;name=0")) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "rate-limit", "token_rate": 60},
        {"action": "error", "message": "m" * 3000},
        {"action": "error", "headers": {f"x{number}": None for number in range(300)}},
    ],
)
def test_the_size_of_scripts_is_no_less_than_what_they_really_take(fields: dict[str, Any]) -> None:
    plan, _ = planned()
    gc.collect()
    tracemalloc.start()
    for number in range(10):
        plan.fault_for(asking(X_Fault=json.dumps({**fields, "name": str(number)})))
    gc.collect()
    really, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert really <= plan.size_bytes <= 3 * really
