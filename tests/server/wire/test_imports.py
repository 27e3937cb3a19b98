"""What a start loads, and how far a request's way through the code is (docs/architecture.md)."""

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
        "app.serving.scripts",
        "pluggy",
    ),
    *(
        "app.serving.api.grpc",
        "app.serving.gunicorn.http2",
        "google.protobuf",
        "h2",
        "hpack",
        "hyperframe",
    ),
    *("grpc", "smg_grpc_proto", "app.plugins", "opentelemetry", "app.base.tracing"),
]
"""Loaded beside the event loop after the start, or when somebody asks for what needs it."""
STEPS = (
    "app.engine.core.step_loop",
    "app.engine.core.step_executor",
    "app.lab.fidelity",
    "config.profile",
    "config.datasheet",
)


def test_a_start_does_not_load_what_comes_later() -> None:
    """A worker when it takes its first connection."""
    script = "import app.serving.gunicorn.worker, wsgi, sys; print(*sys.modules)"
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
    "fast, --profile": (245, 37, 149),
    "Flask, no latency": (138, 32, 72),
    "a required tool": (211, 40, 117),
}
"""Calls (of --profile they depend on the clock), files, changes of file."""
INDEX = re.compile(r"(one .*):\n(\d+) calls, (\d+) files, (\d+) changes of file\n")
MOST_INDEX = {"one KV event": (46, 9, 17), "one score": (36, 9, 17)}


def test_each_way_takes_few_calls_files_and_changes_and_the_fast_one_no_room_twice() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "trace_request.py"), "--summary"]
    told = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=180, check=True
    ).stdout
    ways = {way: (tuple(map(int, figures)), again) for way, *figures, again in WAY.findall(told)}
    assert ways.keys() == MOST.keys(), told
    for way, (figures, again) in ways.items():
        assert all(figure < most for figure, most in zip(figures, MOST[way], strict=True)), told
        # Plain requests are recognised before the middleware, and answered behind it.
        assert not way.startswith("fast") or again == "serving/api"
    of_index = {way: tuple(map(int, figures)) for way, *figures in INDEX.findall(told)}
    assert of_index.keys() == MOST_INDEX.keys(), told
    for way, figures in of_index.items():
        assert all(figure < most for figure, most in zip(figures, MOST_INDEX[way], strict=True)), (
            told
        )
