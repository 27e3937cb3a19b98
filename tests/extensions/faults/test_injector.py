"""One decision per request:

headers, rules, chance; and settings that change while the server runs.
"""

from collections import Counter
from random import Random
from typing import Any

import pytest

from app.core.settings import load
from app.extensions.faults.fault import failure
from app.extensions.faults.injector import FaultInjector
from app.extensions.faults.limits import MAX_HEADER_RULES
from app.extensions.faults.settings import FAILURE_TYPES
from app.extensions.faults.sources import MAX_HEADER_CHARACTERS
from config.validation import LiveSettings
from tests.extensions.faults.client import asking


def planned(**values: Any) -> tuple[FaultInjector, LiveSettings]:
    live = LiveSettings(load((), {}))
    plan = FaultInjector(Random(1), lambda: 1000.0)
    live.subscribe(plan.on_settings)
    live.change({name.replace("_", "-"): value for name, value in values.items()})
    return plan, live


def status(plan: FaultInjector, **headers: str) -> int | None:
    fault = plan.fault_for(asking(**headers))
    return fault.error.status if fault and fault.error else None


FAILURES = {
    "rate_limit": (429, "RateLimitError", None, ""),
    "invalid_api_key": (401, "AuthenticationError", None, ""),
    "context_length": (
        400,
        "BadRequestError",
        "messages",
        "This model's maximum context length is 1000 t",
    ),
    "server_error": (503, "InternalServerError", None, ""),
    "invalid_request": (400, "BadRequestError", "model", ""),
    "model_not_found": (404, "NotFoundError", "model", "There is no model 'llama-nonexistent'"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_each_injected_failure_type_has_a_specific_status_and_error(kind: str) -> None:
    failed = failure(kind, "llama", 1000)
    assert (failed.status, failed.type, failed.param) == FAILURES[kind][:3]
    assert failed.message.startswith(FAILURES[kind][3]) and "{" not in failed.message


@pytest.mark.parametrize("rate", [0, 30, 100])
def test_failure_injection_rate_is_the_percentage_of_failed_requests(rate: int) -> None:
    plan, _ = planned(failure_injection_rate=rate)
    assert plan.is_quiet is (rate == 0)
    failed = sum(plan.fault_for(asking()) is not None for _ in range(4000))
    assert failed / 40 == pytest.approx(rate, abs=3 if rate % 100 else 0)


def test_changed_failure_rate_and_types_apply_from_the_next_request() -> None:
    plan, live = planned(failure_injection_rate=100, failure_types=["rate_limit"])
    assert {status(plan) for _ in range(10)} == {429}
    live.change({"failure-types": ["server_error", "model_not_found"]})
    assert {status(plan) for _ in range(40)} == {503, 404}
    live.change({"failure-types": []})
    named = Counter(fault.name for _ in range(300) if (fault := plan.fault_for(asking())))
    assert named.keys() == set(FAILURE_TYPES)
    live.change({"failure-injection-rate": 0})
    assert plan.is_quiet and {status(plan) for _ in range(10)} == {None}


def test_changed_fault_rules_restart_their_counts() -> None:
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


def test_unchanged_fault_rules_keep_their_counts() -> None:
    once = {"action": "error", "status": 502, "times": 1}
    plan, live = planned(fault_rules=[once])
    assert [status(plan), status(plan)] == [502, None]
    live.change({"fault-rules": [{"action": "error", "status": 429, "times": 2}, once]})
    assert status(plan) == 429
    live.change({"fault-rules": [once, {"action": "error", "status": 429, "times": 2}, once]})
    assert [status(plan) for _ in range(4)] == [429, 502, None, None]


def test_fault_headers_override_fault_rules_and_the_failure_rate() -> None:
    rules = [{"action": "error", "status": 502}]
    plan, live = planned(
        fault_rules=rules, failure_injection_rate=100, failure_types=["rate_limit"]
    )
    assert status(plan, X_Return_Error="422", X_Fault="error;status=503") == 422
    assert status(plan, X_Return_Error="", X_Fault="error;status=503") == 503
    assert status(plan, X_Fault="") == 502
    live.change({"fault-rules": None})
    assert status(plan) == 429


def test_fault_header_that_does_not_fire_leaves_the_decision_to_the_rules() -> None:
    plan, _ = planned(fault_rules=[{"action": "error", "status": 502}])
    assert status(plan, X_Fault="error;status=503;nth=5") == 502
    fault = plan.fault_for(asking(X_Fault="rate-limit"))
    assert fault and fault.error and fault.error.status == 502
    assert "x-ratelimit-limit-requests" in fault.headers


STATUSES = ("oops", "399", "600", "5" * 5000, "٤٠٤")


@pytest.mark.parametrize(
    "header",
    [
        *({"X_Return_Error": text} for text in STATUSES),
        {"X_Fault": "explode"},
        {"X_Fault": "error; message=" + "m" * MAX_HEADER_CHARACTERS},
    ],
)
def test_invalid_fault_header_returns_400(header: dict[str, str]) -> None:
    fault = planned()[0].fault_for(asking(**header))
    assert (
        fault and fault.error and (fault.error.status, fault.error.type) == (400, "BadRequestError")
    )
    assert (
        next(iter(header)).replace("_", "-") in fault.error.message
        and len(fault.error.message) < 300
    )


def test_equal_fault_headers_of_one_client_share_a_request_count() -> None:
    plan, _ = planned()

    def ask(client: str, text: str = "error;times=2") -> bool:
        return plan.fault_for(asking(client=client, X_Fault=text)) is not None

    assert [ask("a"), ask("a"), ask("a"), ask("b"), ask("a")] == [True, True, False, True, False]
    assert ask("a", "error;times=2;name=another test")
    plan.restart()
    assert ask("a")


def test_number_of_cached_header_rules_is_limited() -> None:
    plan, _ = planned()
    for number in range(MAX_HEADER_RULES + 1):
        plan.fault_for(asking(X_Fault=f"error;times=1;name={number}"))
    assert plan.size_bytes == plan.limit_bytes
    assert plan.fault_for(asking(X_Fault=f"error;times=1;name={MAX_HEADER_RULES}")) is None
    assert plan.fault_for(asking(X_Fault="error;times=1;name=0")) is not None
