"""Starts that are refused when the application is built."""

from __future__ import annotations

import pytest

from app.wiring.factory import create_app
from config.declaration import ConfigError
from config.loader import load


@pytest.mark.parametrize("address", ["somewhere", "tcp://*", "tcp://*:x", "http://a:1"])
def test_an_index_that_cannot_listen_anywhere_stops_the_start(address: str) -> None:
    with pytest.raises(ConfigError, match="kv-index-bind"):
        load(("--role", "indexer", "--kv-index-bind", address), {})


def test_an_index_of_pods_that_are_nowhere_stops_the_start() -> None:
    with pytest.raises(SystemExit, match="kv-index-pods"):
        create_app(load(("--role", "indexer", "--kv-index-pods", "tcp://a:0"), {}))
