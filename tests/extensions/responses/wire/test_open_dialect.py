"""A server with `responses-dialect: open`, as OpenAI's SDK and plain requests see it."""

from collections.abc import Iterator

import pytest

from tests.client import MODEL, Client, served
from tests.extensions.responses.open_schema import RESPONSE, flaws
from tests.sdks import openai


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served("--responses-dialect", "open", "--enable-responses-store") as opened:
        yield opened


def test_openai_sdk_reads_complete_and_streamed_responses(client: Client) -> None:
    sdk = openai.OpenAI(base_url=f"{client.url}/v1", api_key="none")
    response = sdk.responses.create(model=MODEL, input="hi")
    assert response.status == "completed" and response.completed_at is not None
    assert flaws(sdk.responses.retrieve(response.id).to_dict(), RESPONSE) == []
    with sdk.responses.stream(model=MODEL, input="hi") as stream:
        kinds = [event.type for event in stream]
        assert kinds[-1] == "response.completed"
        assert stream.get_final_response().output_text


@pytest.mark.parametrize("special", [{}, {"Expect": "100-continue"}])
def test_unknown_model_error_has_the_open_dialect_format(
    client: Client, special: dict[str, str]
) -> None:
    answer = client.post("/v1/responses", {"input": "hi", "model": "missing"}, headers=special)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found"
    assert answer.json()["error"]["code"] == "model_not_found"
