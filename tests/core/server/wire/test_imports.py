"""Modules that a start loads, and calls per request (docs/architecture.md)."""

import re
import subprocess
import sys

from tests.running_server import ROOT

LATER = [
    *(
        "jsonschema",
        "referencing",
        "sqlalchemy",
        "zmq",
        "yaml",
        "argparse",
        "app.extensions.scripts",
        "pluggy",
    ),
    *(
        "app.core.api.grpc",
        "app.core.server.gunicorn.http2",
        "google.protobuf",
        "h2",
        "hpack",
        "hyperframe",
    ),
    *("grpc", "smg_grpc_proto", "app.plugins", "opentelemetry", "app.extensions.tracing.export"),
]
"""Loaded beside the event loop after the start, or when somebody asks for what needs it."""
STEPS = (
    "app.core.engine.step_loop",
    "app.core.engine.step_executor",
    "app.extensions.lab.fidelity",
    "config.profile",
    "config.datasheet",
)


def test_start_does_not_import_late_modules() -> None:
    """A worker when it takes its first connection."""
    script = "import app.core.server.gunicorn.worker, wsgi, sys; print(*sys.modules)"
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=50)
    late = (*LATER, *STEPS, "torch", "matplotlib")
    assert [
        name for name in done.stdout.split() if any(f"{name}.".startswith(f"{it}.") for it in late)
    ] == []


WAY = re.compile(
    r"(.*):\n(\d+) calls, (\d+) files, (\d+) changes of file\n.*\nentered again before submit: (.*)\n"
)
MOST = {
    "fast, no latency": (76, 24, 41),
    "fast, --profile": (245, 40, 156),
    "Flask, no latency": (138, 37, 76),
    "a required tool": (211, 46, 124),
}
"""Calls (of --profile they depend on the clock), files, changes of file."""
INDEX = re.compile(r"(one .*):\n(\d+) calls, (\d+) files, (\d+) changes of file\n")
MOST_INDEX = {"one KV event": (46, 14, 20), "one score": (36, 11, 19)}


def test_calls_and_files_per_request_stay_within_their_budgets() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "trace_request.py"), "--summary"]
    told = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=180, check=True
    ).stdout
    ways = {way: (tuple(map(int, figures)), again) for way, *figures, again in WAY.findall(told)}
    assert ways.keys() == MOST.keys(), told
    for way, (figures, again) in ways.items():
        assert all(figure < most for figure, most in zip(figures, MOST[way], strict=True)), told
        # Plain requests are recognised before the middleware, and answered behind it.
        assert not way.startswith("fast") or again == "core/api"
    of_index = {way: tuple(map(int, figures)) for way, *figures in INDEX.findall(told)}
    assert of_index.keys() == MOST_INDEX.keys(), told
    for way, figures in of_index.items():
        assert all(figure < most for figure, most in zip(figures, MOST_INDEX[way], strict=True)), (
            told
        )
