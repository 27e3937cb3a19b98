"""What the root of an indexer answers."""

from tests.extensions.openapi.test_openapi import application


def test_indexer_root_describes_the_server_and_lists_its_routes() -> None:
    root = application("indexer").test_client().get("/").get_json()
    assert root["plays"] == "an index of KV blocks"
    assert "POST /v1/chat/completions" not in root["routes"]
