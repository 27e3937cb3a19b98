"""Servers with the role of an indexer: which ones start, and which hosts they accept."""

import pytest

from tests.application import app_of
from tests.core.middleware.test_foreign_pages import status


def test_invalid_pod_address_prevents_startup() -> None:
    with pytest.raises(SystemExit, match="kv-index-pods"):
        app_of("--role", "indexer", "--kv-index-pods", "tcp://a:0")


def test_indexer_rejects_public_host_names_except_for_health_checks() -> None:
    indexer = app_of(
        "--role", "indexer", "--kv-index-pods", "tcp://pod:5557", "--force-dummy-tokenizer"
    )
    assert status(indexer, "/admin/memory", method="GET", host="evil.example") == 403
    assert status(indexer, "/admin/memory", method="GET", host="indexer.default.svc:8000") == 200
    assert status(indexer, "/health", method="GET", host="evil.example") == 200
