"""What the root of an indexer answers."""

from tests.extensions.openapi.test_openapi import application


def test_root_route_of_an_indexer_lists_no_generation_route() -> None:
    root = application("indexer").test_client().get("/").get_json()
    assert root["plays"] == "an index of KV blocks"
    assert "POST /v1/chat/completions" not in root["routes"]
