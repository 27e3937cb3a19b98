"""What only a shared backend has to do: be shared, be away, come back, and come back empty."""

from __future__ import annotations

import pytest

from app.kvindex.backend import RedisSettings
from app.kvindex.redis_backend import (
    RedisBackend,
    redis_url,
)

pytestmark = pytest.mark.redis


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("redis://h:1", "redis://h:1"),
        ("rediss://h:1/2", "rediss://h:1/2"),
        ("valkey://h:1", "redis://h:1"),
        ("valkeys://h:1", "rediss://h:1"),
        ("unix:///s", "unix:///s"),
        ("h:1", "redis://h:1"),
    ],
)
def test_addresses_are_those_that_llm_d_takes(given: str, known: str) -> None:
    assert redis_url(given) == known


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError):
        RedisBackend(RedisSettings(url="http://h:1"))
