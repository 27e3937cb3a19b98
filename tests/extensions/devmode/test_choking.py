"""A choke of blocks that the engine does not have."""

from tests.client import Client


def test_throttling_of_cache_blocks_is_rejected_if_there_is_no_kv_cache(client: Client) -> None:
    answer = client.post("/admin/choke", {"kv_blocks": 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "kv_blocks requires a KV cache; start the server with --enable-kvcache or a profile."
    )
