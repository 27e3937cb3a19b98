"""Responses have no rank of data parallelism."""

from tests.client import in_process
from tests.extensions.data_parallel.test_ranks import INTERNAL, RANK


def test_responses_ignore_the_rank_header() -> None:
    body = {"input": "Hello", "max_output_tokens": 2}
    with in_process(INTERNAL, "--data-parallel-size=2") as client:
        statuses = [
            client.post("/v1/responses", body, headers={RANK: rank}).status_code
            for rank in ("1", "7", "9" * 30)
        ]
    assert statuses == [200] * 3
