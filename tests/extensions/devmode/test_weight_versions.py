"""Which version of the weights generated tokens name."""

from tests.extensions.devmode.test_weights import TRAINED, ask, client_of


def test_replies_have_the_weight_version_of_the_last_update() -> None:
    client = client_of(*TRAINED)
    updated = {"success": True, "new_version": "2"}
    assert ask(client, "/update_weight_version", {"new_version": "2"}) == (200, updated)
    body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 3, "ignore_eos": True}}
    choice = ask(client, "/inference/v1/generate", body)[1]["choices"][0]
    assert choice["weight_versions"] == [{"version": "2", "start": 0, "end": 3}]
