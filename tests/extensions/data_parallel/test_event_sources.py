"""The addresses of the KV events of all ranks."""

import pytest

from tests.client import in_process

FLAGS = ("--data-parallel-mode=internal", "--enable-kvcache", "--zmq-endpoint=tcp://127.0.0.1:5600")


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (("--data-parallel-size=4", "--data-parallel-rank=2"), [2]),
        (
            (
                "--data-parallel-size=8",
                "--data-parallel-size-local=3",
                "--data-parallel-start-rank=8",
            ),
            [8, 9, 10],
        ),
    ],
)
def test_each_rank_has_a_separate_event_port(ranks: tuple[str, ...], expected: list[int]) -> None:
    with in_process(*FLAGS, *ranks) as client:
        sources = client.get("/kv_event_sources").json()
    assert {int(rank): source["endpoint"] for rank, source in sources.items()} == {
        rank: f"tcp://127.0.0.1:{5600 + rank}" for rank in expected
    }
