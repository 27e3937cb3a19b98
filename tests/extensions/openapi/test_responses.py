"""Stored responses are as the document describes them."""

from tests.extensions.openapi.test_openapi import application, described, is_valid, operations


def test_stored_response_matches_its_schema() -> None:
    client = application("generate").test_client()
    body = {"input": "hello", "background": True}
    stored = client.post("/v1/responses", json=body).get_json()
    for operation in (
        "GET /v1/responses/{response_id}",
        "POST /v1/responses/{response_id}/cancel",
    ):
        method, path = operation.split()
        answer = client.open(path.replace("{response_id}", stored["id"]), method=method)
        if answer.status_code == 200:
            content = operations("generate")[operation]["responses"]["200"]["content"]
            schema = content["application/json"]["schema"]
            is_valid(answer.get_json(), schema, described("generate"))
        else:
            assert (method, answer.status_code) == ("POST", 400)
