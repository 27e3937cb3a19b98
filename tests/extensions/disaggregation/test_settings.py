"""Which routes the settings add."""

from tests.client import Client, in_process


def test_the_small_routes_answer(client: Client) -> None:
    assert client.get("/kv_event_sources").json() == {}  # no events are published
    for path in ("/abort_requests", "/inference/v1/abort_requests"):
        for body in ([], "x"):  # names no requests
            answer = client.post(path, body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")


def test_without_the_settings_the_routes_are_refused() -> None:
    with in_process() as client:
        for path in ("abort_requests", "generate"):
            assert error_type(client, f"/inference/v1/{path}") == (403, "PermissionDeniedError")
        for family in ("chat/completions", "completions"):
            assert error_type(client, f"/v1/{family}/render") == (403, "PermissionDeniedError")


def error_type(client: Client, path: str) -> tuple[int, str]:
    answer = client.post(path, {})
    return answer.status_code, answer.json()["error"]["type"]
