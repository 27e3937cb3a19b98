"""Modules that a start loads, and the order of a request (docs/architecture.md)."""

import re
import subprocess
import sys
from importlib.util import find_spec

from app.core.built_in import enabled_extensions, import_extension, present_extensions
from app.core.settings import load
from tests.running_server import ROOT

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


def test_loading_all_extension_packages_imports_no_http_server() -> None:
    program = (
        "import sys; from app.core.built_in import present_extensions; present_extensions();"
        "print(sorted({'gevent', 'gunicorn', 'werkzeug', 'flask'} & sys.modules.keys()))"
    )
    words = [sys.executable, "-c", program]
    output = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output == "[]\n"


def with_requirements(names: set[str]) -> set[str]:
    """Returns the extensions of these names, and all that they require."""
    required = {name for own in names for name in import_extension(own).requires}
    return names if required <= names else with_requirements(names | required)


def test_command_is_looked_up_in_the_extensions_with_commands_alone() -> None:
    """Those that they require are imported, too: without one of them, a command does not exist."""
    program = (
        "import sys; from app.core.cli import command_of; command_of(['check']);"
        "print(*{name.split('.')[2] for name in sys.modules if name.startswith('app.extensions.')})"
    )
    words = [sys.executable, "-c", program]
    output = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with_commands = {extension.name for extension in present_extensions("commands.py")}
    imported = set(output.split())
    assert imported
    assert imported <= with_requirements(with_commands)


WAY = re.compile(r"(.*):\n\d+ calls, .*\n.*\nentered again before submit: (.*)\n")


def test_plain_requests_are_recognized_before_the_middleware() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "trace_request.py"), "--summary"]
    output = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=180, check=True
    ).stdout
    fast_ways = {way: room for way, room in WAY.findall(output) if way.startswith("fast")}
    assert len(fast_ways) == 3, output
    assert set(fast_ways.values()) == {"core/api"}
