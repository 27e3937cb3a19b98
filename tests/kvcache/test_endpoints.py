"""Addresses mean to us what they mean to vLLM."""

from __future__ import annotations

import pytest

from app.engine.kvcache.endpoints import is_bound, is_ipv6, of_rank


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 3, "tcp://*:5560"),
        ("tcp://[::1]:5557", 1, "tcp://[::1]:5558"),
        ("tcp://*:0", 4, "tcp://*:0"),
        ("inproc://cache", 2, "inproc://cache_dp2"),
        ("ipc:///tmp/kv", 0, "ipc:///tmp/kv"),
    ],
)
def test_each_rank_has_its_own(endpoint: str, rank: int, expected: str) -> None:
    assert of_rank(endpoint, rank) == expected


@pytest.mark.parametrize(
    ("endpoint", "rank"),
    [
        ("", 0),
        ("http://localhost:5557", 0),
        ("tcp://localhost", 0),
        ("tcp://localhost:٣", 0),
        ("tcp://localhost:65535", 1),
        ("ipc:///tmp/kv", 1),
    ],
)
def test_what_is_no_endpoint_is_refused(endpoint: str, rank: int) -> None:
    with pytest.raises(ValueError):
        of_rank(endpoint, rank)


@pytest.mark.parametrize(
    ("endpoint", "bound"),
    [
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("inproc://cache", True),
        ("tcp://localhost:5557", False),
    ],
)
def test_the_form_of_an_address_says_who_binds(endpoint: str, bound: bool) -> None:
    assert is_bound(endpoint) == bound


@pytest.mark.parametrize(
    ("endpoint", "ipv6"),
    [
        ("tcp://[fd00:0:0:0:0:0:0:1]:5557", True),
        ("tcp://[::1]:5557", True),
        ("tcp://10.0.0.1:5557", False),
    ],
)
def test_the_form_of_an_address_says_whether_it_is_of_ipv6(endpoint: str, ipv6: bool) -> None:
    assert is_ipv6(endpoint) == ipv6
