"""Requests for scores that name the pod of a prompt, before its event arrives."""

import pytest
from flask.testing import FlaskClient

from tests.application import app_of

TEXT = "The lighthouse keeper writes down every ship that passes, and where it is bound for. " * 3
CHAT = [{"role": "user", "content": TEXT}]
TOKENS = list(range(100, 150))


def indexer(*flags: str) -> FlaskClient:
    # A long lifetime: the machine may be slow, and a later flag overrides it.
    lifetime = ("--kv-index-routed-lifetime", "1h")
    settings = ("--role", "indexer", "--kv-index-pods", "tcp://pod:5557", *lifetime, *flags)
    return app_of(*settings).test_client()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/score_completions", {"prompt": TEXT}),
        ("/score_chat_completions", {"messages": CHAT}),
    ],
)
def test_routed_to_pod_is_scored_in_the_same_response_and_later_ones(
    path: str, body: dict[str, object]
) -> None:
    client = indexer()
    assert client.post(path, json=body).get_json() == {}
    answer = client.post(path, json={**body, "routed_to": "pod-a"}).get_json()
    assert answer["pod-a"] >= 2
    assert client.post(path, json=body).get_json() == answer
    assert client.post(path, json={**body, "pods": ["pod-b"]}).get_json() == {}


def test_score_of_a_routed_prompt_has_the_rank_and_speculative_tier() -> None:
    client = indexer()
    body = {"tokens": TOKENS, "routed_to": "pod-a", "routed_rank": 3}
    card = client.post("/score_tokens", json=body).get_json()["scores"]["pod-a"]
    assert (card["rank"], card["matched"], card["tiers"]) == (3, 3, {"speculative": 3})


def test_speculative_tier_weight_sets_the_score_of_a_routed_prompt() -> None:
    client = indexer("--kv-index-tier-weights", "gpu=1", "speculative=0.5")
    body = {"tokens": TOKENS, "routed_to": "pod-a"}
    assert client.post("/score_tokens", json=body).get_json()["scores"]["pod-a"]["score"] == 1.5


def test_routed_request_without_a_configured_lifetime_is_rejected() -> None:
    client = indexer("--kv-index-routed-lifetime", "0s")
    answer = client.post("/score_tokens", json={"tokens": TOKENS, "routed_to": "pod-a"})
    assert answer.status_code == 400
    assert answer.get_json()["error"]["param"] == "routed_to"
    assert "kv-index-routed-lifetime is 0" in answer.get_json()["error"]["message"]


def test_negative_rank_is_rejected() -> None:
    body = {"tokens": TOKENS, "routed_to": "pod-a", "routed_rank": -1}
    assert indexer().post("/score_tokens", json=body).status_code == 400
