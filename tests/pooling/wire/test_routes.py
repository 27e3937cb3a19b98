"""Which routes there are, by task."""

from __future__ import annotations

import pytest
import requests

from tests.conformance.calls import post
from tests.pooling.calls import BASE, POOL
from tests.pooling.test_routes import PATHS
from tests.running_server import RunningServer


@pytest.mark.parametrize("path", PATHS)
def test_pooling_routes_are_asked_by_post(every: RunningServer, path: str) -> None:
    got = requests.get(every.url + path, timeout=20)
    assert (got.status_code, got.headers["Allow"]) == (405, "POST")


def test_the_pod_is_named(every: RunningServer) -> None:
    assert post(every, POOL, BASE[POOL]).headers["x-inference-pod"] == "pod-1"
