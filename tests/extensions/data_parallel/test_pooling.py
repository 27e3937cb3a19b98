"""Texts that the ranks of a pooling model embed."""

import re

from tests.client import in_process


def test_embedding_texts_are_balanced_across_ranks() -> None:
    ranks = ("--data-parallel-mode=internal", "--data-parallel-size=2")
    with in_process(*ranks, "--task=embed") as client:
        texts = ["One", "Two", "Three", "Four"]
        answer = client.post("/v1/embeddings", {"input": texts})
        assert [item["index"] for item in answer.json()["data"]] == list(range(4))
        page = client.get("/metrics").text
        finished = re.findall(r"^vllm:request_prompt_tokens_count\{.*\} (\S+)$", page, re.M)
        assert finished == ["2.0", "2.0"]
