"""Modules that a start loads, and calls per request (docs/architecture.md)."""

import ast
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from app.core.built_in import BUILT_IN, enabled_extensions, present_extensions
from app.core.settings import load
from tests.hostile.raw_client import get, post
from tests.running_server import ROOT, free_port, running_command
from tests.test_structure import token_count

LAZY_PACKAGES = (
    "jsonschema",
    "referencing",
    "sqlalchemy",
    "redis",
    "zmq",
    "yaml",
    "argparse",
    "google.protobuf",
    "h2",
    "hpack",
    "hyperframe",
    "grpc",
    "smg_grpc_proto",
    "opentelemetry",
    "tokenizers",
    "torch",
    "matplotlib",
    "urllib3",
)
LAZY_MODULES = (
    "app.plugins",
    "app.core.engine.kvcache.block_pool",
    "app.core.engine.kvcache.cache",
    "app.core.engine.kvcache.publisher",
    "app.core.engine.kvcache.stores",
    "app.core.engine.profile",
    "app.core.engine.step_executor",
    "app.core.engine.step_loop",
    "app.core.headless",
    "app.core.profiles",
    "app.core.server.gunicorn.arbiter",
    "app.core.server.gunicorn.general",
    "app.shared.http_client",
    "app.core.text.vocabulary",
    "app.extensions.anthropic.protocol",
    "app.extensions.anthropic.routes",
    "app.extensions.beam_search.search",
    "app.extensions.explanation.delays",
    "app.extensions.explanation.explanation",
    "app.extensions.forms.grammar",
    "app.extensions.forms.schema.draw",
    "app.extensions.forms.schema.validation",
    "app.extensions.plugins.api",
    "app.extensions.plugins.command",
    "app.extensions.plugins.registry",
    "app.extensions.project_files.command",
    "app.extensions.rate_limits.limits",
    "app.extensions.render_service.tokenizer",
    "app.extensions.responses.protocol",
    "app.extensions.responses.routes",
    "app.extensions.responses.store",
    "app.extensions.shell_completion.command",
    "app.extensions.scripts.command",
    "app.extensions.scripts.resolver",
    "app.extensions.scripts.script_set",
    "app.extensions.costs.datasheet",
    "app.extensions.costs.server_profile",
    "config.environment",
    "config.plugin_modules",
    "vllm_facts.known_models",
    "workbench",
)
"""Imported after the start, or by the first request that needs them."""
PATHS_OF_POOLING = "app.extensions.pooling.paths"
"""A small module that decides whether its extension is enabled."""


def off_extensions() -> list[str]:
    """Returns the present extensions that the default settings disable."""
    enabled = enabled_extensions(load((), {}))
    return [extension.name for extension in present_extensions() if extension not in enabled]


def test_startup_does_not_import_lazy_modules() -> None:
    """A worker when it takes its first connection."""
    script = "import app.core.server.gunicorn.worker, wsgi, sys; print(*sys.modules)"
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=50)
    # The default version undoes what the newest release of vLLM changed.
    imported = [name for name in done.stdout.split() if ".releases" not in name]
    late = tuple(f"{name}." for name in (*LAZY_PACKAGES, *LAZY_MODULES))
    assert [name for name in imported if f"{name}.".startswith(late)] == []
    off = [f"app.extensions.{name}" for name in off_extensions()]
    allowed = {PATHS_OF_POOLING, *(f"{package}.settings" for package in off)}
    modules = {
        name for name in imported if name.startswith(tuple(f"{package}." for package in off))
    }
    assert modules - allowed == set()


def test_settings_are_declared_without_importing_app_extensions() -> None:
    """Only the packages, which declare the extensions, and their settings are imported."""
    script = "from app.core.settings import load; import sys; load(); print(*sys.modules)"
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=50)
    modules = [name for name in done.stdout.split() if name.startswith("app.extensions.")]
    code = [name for name in modules if name.count(".") > 2 and not name.endswith(".settings")]
    assert any(name.endswith(".settings") for name in modules)
    assert [name for name in code if name != PATHS_OF_POOLING] == []


def test_list_of_lazy_modules_contains_only_existing_modules() -> None:
    assert [name for name in LAZY_MODULES if find_spec(name) is None] == []


MAX_IMPORTED_TOKENS = 180_000
"""Python tokens of ours that a default server has imported after its first requests.

It finds a package that is imported by mistake, and leaves room to write plain code: import what few
requests need in the function that needs it.
"""
MAX_CORE_TOKENS = 178_200
"""Python tokens of the core: move a feature to an extension instead of raising the limit."""
CHAT = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}
REQUESTS = (
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/responses", {"input": "Hello!", "max_output_tokens": 16}),
    ("/v1/messages", CHAT),
)
APPLICATION_WITH_REPORT = """
import sys

from app.core.server.http.response import json_response
from app.core.server.http.route import get
from wsgi import app


def imported(context):
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return json_response([file for file in files if file])


app.add_routes("report", [get("/imported", imported)])
"""


def docstring_count(path: Path) -> int:
    """Returns the number of docstrings, those of attributes included, each of them one token."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    texts = [node.value for node in nodes if isinstance(node, ast.Expr)]
    return sum(isinstance(text, ast.Constant) and type(text.value) is str for text in texts)


def test_source_code_of_the_core_stays_within_its_token_budget() -> None:
    core = (ROOT / "app" / "core").rglob("*.py")
    assert sum(token_count(path) - docstring_count(path) for path in core) <= MAX_CORE_TOKENS


def test_code_that_the_first_requests_import_stays_within_its_token_budget(tmp_path: Path) -> None:
    (tmp_path / "reporting.py").write_text(APPLICATION_WITH_REPORT, "utf-8")
    command = [sys.executable, "-m", "gunicorn", "--pythonpath", str(tmp_path), "reporting:app"]
    port = free_port()
    env = {"SIM_HOST": "127.0.0.1", "SIM_PORT": str(port), "SIM_ACCESS_LOG": "true"}
    with running_command(command, port, env) as server:
        model = json.loads(get(port, "/v1/models").body)["data"][0]["id"]
        for path, fields in REQUESTS:
            assert post(port, {**fields, "model": model}, path).status == 200
        files = {Path(file) for file in json.loads(get(port, "/imported").body)}
        log = server.log()
    ours = [
        file
        for file in files
        if file.suffix == ".py"
        and file.is_relative_to(ROOT)
        and not file.relative_to(ROOT).parts[0].startswith(".venv")
    ]
    tokens = {
        str(file.relative_to(ROOT)): token_count(file) - docstring_count(file) for file in ours
    }
    assert len(ours) > 100
    assert sum(tokens.values()) <= MAX_IMPORTED_TOKENS, (tokens, log)


def test_loading_all_extension_packages_imports_no_http_server() -> None:
    program = (
        "import sys; from app.core.built_in import present_extensions; present_extensions();"
        "print(sorted({'gevent', 'gunicorn', 'werkzeug', 'flask'} & sys.modules.keys()))"
    )
    words = [sys.executable, "-c", program]
    output = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output == "[]\n"


def test_command_is_looked_up_in_the_extensions_with_commands_alone() -> None:
    """Where an extension was deleted, others are imported, too: they may require it."""
    program = (
        "import sys; from app.core.cli import command_of; command_of(['check']);"
        "print(*{name.split('.')[2] for name in sys.modules if name.startswith('app.extensions.')})"
    )
    words = [sys.executable, "-c", program]
    output = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folder = ROOT / "app" / "extensions"
    packages = {file.parent.name for file in folder.glob("*/__init__.py")}
    expected = packages
    if packages >= BUILT_IN.keys():
        expected = {file.parent.name for file in folder.glob("*/commands.py")}
    assert output.strip() and set(output.split()) <= expected


WAY = re.compile(
    r"(.*):\n(\d+) calls, (\d+) files, (\d+) changes of file\n.*\nentered again before submit: (.*)\n"
)
MOST = {
    "fast, no latency": (65, 25, 38),
    "fast, paced": (142, 36, 107),
    "fast, --profile": (242, 43, 174),
    "Flask, no latency": (98, 38, 65),
    "a known required tool": (105, 39, 76),
    "a required tool, direct": (131, 53, 100),
    "a required tool": (123, 48, 94),
}
"""Calls (of --profile they depend on the clock), files, changes of file."""
INDEX = re.compile(r"(one .*):\n(\d+) calls, (\d+) files, (\d+) changes of file\n")
MOST_INDEX = {"one KV event": (58, 17, 30), "one score": (31, 11, 19)}


def test_each_request_uses_a_limited_number_of_calls_and_source_files() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "trace_request.py"), "--summary"]
    output = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=180, check=True
    ).stdout
    ways = {way: (tuple(map(int, figures)), room) for way, *figures, room in WAY.findall(output)}
    assert ways.keys() == MOST.keys(), output
    for way, (figures, room) in ways.items():
        assert all(figure < limit for figure, limit in zip(figures, MOST[way], strict=True)), output
        # Plain requests are recognised before the middleware, and answered behind it.
        assert not way.startswith("fast") or room == "core/api"
    of_index = {way: tuple(map(int, figures)) for way, *figures in INDEX.findall(output)}
    assert of_index.keys() == MOST_INDEX.keys(), output
    for way, figures in of_index.items():
        assert all(
            figure < limit for figure, limit in zip(figures, MOST_INDEX[way], strict=True)
        ), output
