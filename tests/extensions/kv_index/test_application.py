"""Starts of an indexer that are refused."""

import pytest

from tests.application import app_of


def test_an_index_of_pods_that_are_nowhere_stops_the_start() -> None:
    with pytest.raises(SystemExit, match="kv-index-pods"):
        app_of("--role", "indexer", "--kv-index-pods", "tcp://a:0")
