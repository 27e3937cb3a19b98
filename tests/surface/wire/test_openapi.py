"""GET /openapi.json describes every route; what it promises is what is answered. GET / says what this is."""

from __future__ import annotations

import subprocess

import pytest

from tests.needs import CLIENTS_PYTHON
from tests.surface.conftest import served
from tests.surface.test_openapi import ENDING, KINDS, SESSION

FAILING = (*SESSION, "/collective_rpc", "/scale_elastic_ep", "/v1/systemone")
"""Answer 500, as vLLM does, where bodies name a method or a size that there is not; 501 for other models."""
UNTYPED = (
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/adapters/{adapter_name}"),
    "/inference/v1/abort_requests",
)
"""Answer without a content type, as vLLM does: tests/surface/test_loras.py."""


@pytest.mark.clients
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_schemathesis_finds_nothing(kind: str) -> None:
    """Its own cases for every route: no 5xx, no status, type or body that is not described."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    words = [word for path in ENDING + FAILING + UNTYPED for word in ("--exclude-path", path)]
    if kind == "script":  # whose faults are errors on purpose
        words = ["--include-path", "/admin/script"]
    with served(*KINDS[kind]) as client:
        done = subprocess.run(
            [
                str(CLIENTS_PYTHON.with_name("st")), "run", f"{client.server.url}/openapi.json",
                "--checks", checks, "--phases", "examples,fuzzing", "--max-examples", "2",
                "--seed", "1", "--continue-on-failure", "--no-color",
                *words,
            ],
            capture_output=True,
            text=True,
            timeout=100,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
