"""The console tells of requests that a limit has refused."""

from typing import Any

import pytest

from tests.application import app_of


@pytest.mark.parametrize("flags", [(), ("--profile", "qwen3-14b-h100")], ids=["requests", "steps"])
def test_console_shows_the_reason_for_a_rate_limit_rejection(flags: tuple[str, ...]) -> None:
    quota = ("--requests-per-minute", "1", "--admin-key", "secret")
    limited_client = app_of("--console", "--force-dummy-tokenizer", *quota, *flags).test_client()
    answers = [
        limited_client.post(
            "/v1/completions",
            json={"prompt": "Hi", "max_tokens": 1},
            headers={"X-Request-Id": name},
        )
        for name in ("first", "second")
    ]
    assert [answer.status_code for answer in answers] == [200, 429]

    def report(request_id: str) -> Any:
        return limited_client.get(
            f"/admin/requests/{request_id}", headers={"X-Admin-Key": "secret"}
        ).get_json()

    assert (
        report("second")["sentence"]
        == f"Rejected with status 429: {answers[1].get_json()['error']['message']}"
    )
    assert report("second")["choices"] == []
    assert report(answers[0].get_json()["id"])["choices"][0]["status"] == "length"
    assert report("first")["choices"][0]["phases"]
    assert limited_client.get("/admin/requests/first").status_code == 401
    assert (
        limited_client.get("/admin/requests/third", headers={"X-Admin-Key": "secret"}).status_code
        == 404
    )
