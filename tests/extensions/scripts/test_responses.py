"""Scripts and the Responses API in one server."""

from tests.application import app_of
from tests.extensions.scripts.requests import Books


def test_request_that_continues_a_stored_response_counts_as_turn_2(books: Books) -> None:
    path = books.write("rules: [{when: {turn: 2}, then: {text: second}}, {then: {text: first}}]")
    flags = ["--force-dummy-tokenizer", "--script", str(path), "--enable-responses-store"]
    client = app_of(*flags).test_client()
    first = client.post("/v1/responses", json={"input": "go on"}).get_json()
    body = {"input": "go on", "previous_response_id": first["id"]}
    second = client.post("/v1/responses", json=body).get_json()
    texts = [response["output"][0]["content"][0]["text"] for response in (first, second)]
    assert texts == ["first", "second"]
