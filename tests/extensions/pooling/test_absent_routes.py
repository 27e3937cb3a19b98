"""The log names the reason for a POST to a route that the server lacks because of its model."""

import logging

import pytest

from tests.application import app_of

NOT_FOUND = {"detail": "Not Found"}


@pytest.mark.parametrize(
    ("options", "path", "task"),
    [
        ((), "/v1/embeddings", "generate"),
        ((), "/v2/rerank", "generate"),
        (("--task", "embed"), "/v1/chat/completions", "embed"),
        (("--task", "embed"), "/classify", "embed"),
    ],
)
def test_post_to_a_route_of_another_kind_of_model_logs_the_reason(
    caplog: pytest.LogCaptureFixture, options: tuple[str, ...], path: str, task: str
) -> None:
    client = app_of(*options).test_client()
    with caplog.at_level(logging.WARNING):
        answer = client.post(path, json={"model": "m", "input": "hi"})
    assert (answer.status_code, answer.json) == (404, NOT_FOUND)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"POST {path} answered 404: the task of the model ")
    assert f" is {task}, and as in vLLM" in line


def test_other_absent_paths_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    client = app_of().test_client()
    with caplog.at_level(logging.WARNING):
        assert client.post("/v1/nothing", json={}).status_code == 404
        assert client.get("/v1/embeddings").status_code == 404
    assert not caplog.records
