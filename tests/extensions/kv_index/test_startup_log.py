"""The lines of the index at the start of the log."""

import pytest

from app.core.settings import load
from app.extensions.kv_index import KvIndexing

INDEXER = ("--role", "indexer")
ONLY_INDEX = "this process has only the index"


@pytest.mark.parametrize(
    ("argv", "role", "sources"),
    [
        (INDEXER, ONLY_INDEX, "pods that connect to tcp://*:5557"),
        ([*INDEXER, "--kv-index-bind", "tcp://*:9"], ONLY_INDEX, "pods that connect to tcp://*:9"),
        (
            [*INDEXER, "--kv-index-pods", "tcp://a:1", "dns://b:2"],
            ONLY_INDEX,
            "tcp://a:1, dns://b:2",
        ),
        (["--kv-index", "--enable-kvcache"], "enabled", "this server"),
        (["--kv-index"], "enabled", "no pod"),
    ],
)
def test_index_logs_its_role_and_the_sources_of_its_events(
    argv: list[str], role: str, sources: str
) -> None:
    assert KvIndexing.startup_lines(load(argv, {})) == [f"KV index: {role}; events from {sources}"]
