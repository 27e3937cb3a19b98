"""The settings of failures change while the server runs."""

from typing import Any

import pytest

from tests.client import Client


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"failure-injection-rate": 101}, "must be between 0 and 100"),
        ({"failure-types": ["bogus"]}, "must only have"),
    ],
)
def test_invalid_change_of_failure_settings_changes_nothing(
    client: Client, values: dict[str, Any], line: str
) -> None:
    settings_before = client.get("/admin/config").json()
    answer = client.post("/admin/config", {"prefill-overhead": "5ms", **values})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")
    assert line in answer.json()["error"]["message"]
    assert client.get("/admin/config").json() == settings_before
