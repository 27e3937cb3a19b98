"""Beam searches on several ranks."""

import re

from tests.client import in_process

TOKENS = re.compile(r'^vllm:generation_tokens_total\{engine="(\d+)".*\} (\S+)$', re.M)


def test_beam_search_runs_on_the_requested_rank() -> None:
    search = {"prompt": "Hello", "use_beam_search": True, "n": 2, "max_tokens": 2}
    with in_process("--data-parallel-mode=internal", "--data-parallel-size=2") as client:
        for _ in range(3):
            answer = client.post("/v1/completions", search, headers={"X-data-parallel-rank": "0"})
            assert answer.status_code == 200
        counts = dict(TOKENS.findall(client.get("/metrics").text))
    assert float(counts["0"]) > 0
    assert float(counts["1"]) == 0
