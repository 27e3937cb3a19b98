"""Scripts on a server of a pooling model."""

from typing import Any

from tests.application import app_of
from tests.extensions.scripts.test_run_time import rules


def test_a_rule_of_the_run_time_gives_an_embedding() -> None:
    client = app_of("--task", "pooling").test_client()
    rules(client, "", "POST", {"then": {"embedding": [0.25, 0.5]}})
    answer: Any = client.post("/v1/embeddings", json={"input": "a"}).json
    assert answer["data"][0]["embedding"] == [0.25, 0.5]
