"""What a start loads: a server is there sooner for each thing that it does not need at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.running_server import ROOT

LATER = (
    "jsonschema",
    "referencing",
    "sqlalchemy",
    "zmq",
    "yaml",
    "argparse",
    "app.serving.scripts",
    "app.serving.api.grpc",
    "app.serving.gunicorn.http2",
    "google.protobuf",
    "h2",
    "hpack",
    "hyperframe",
    "grpc",
    "smg_grpc_proto",
    "pluggy",
    "app.plugins",
)
"""Loaded beside the event loop after the start, or when somebody asks for what needs it."""
STEPS = ("app.engine.core.stepped", "app.lab.fidelity", "config.profile", "config.datasheet")


@pytest.mark.parametrize("name", [*LATER, *STEPS, "torch", "matplotlib"])
def test_a_start_does_not_load_what_comes_later(loaded: set[str], name: str) -> None:
    assert not {module for module in loaded if module == name or module.startswith(f"{name}.")}


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that a worker has when it takes its first connection."""
    script = "import app.serving.gunicorn.worker, wsgi, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=50
    )
    return set(done.stdout.split())
