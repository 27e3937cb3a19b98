"""Routes for developers before and after the releases that changed them."""

import pytest

from tests.application import app_of


@pytest.mark.parametrize(("version", "body"), [("0.25", b""), ("0.26", b'{"success":true}')])
def test_reset_of_the_prefix_cache_reports_success_since_026(version: str, body: bytes) -> None:
    client = app_of("--vllm-version", version, "--server-dev-mode", "true").test_client()
    assert client.post("/reset_prefix_cache").data == body


@pytest.mark.parametrize(("version", "kind"), [("0.31", "Missing"), ("0.32", "1 validation error")])
def test_way_of_weights_is_required_with_other_words_since_032(version: str, kind: str) -> None:
    client = app_of("--vllm-version", version, "--server-dev-mode", "true").test_client()
    answer = client.post("/init_weight_transfer_engine", json={})
    assert answer.get_json()["error"]["message"].startswith(kind)
