"""The house of docs/architecture.md:

files that import each other in no circle, none of them too long.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.present import is_in_tree
from tests.syntax import last_name, statements, tree_of

ROOT = Path(__file__).parents[1]
MAX_TOKENS = 4_500
"""Tokens of a file, without comments, docstrings counting as one. Lines would reward packing."""
LAYOUT = (
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_of(path): path
    for folder in ("app", "config", "vllm_facts", "workbench", "vllm_understudy")
    for path in (ROOT / folder).rglob("*.py")
}


Trees = dict[str, ast.Module]
Imports = dict[str, frozenset[str]]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """The syntax trees of all modules."""
    return {module: tree_of(path) for module, path in MODULES.items()}


@pytest.fixture(scope="module")
def imports(trees: Trees) -> Imports:
    """The modules of ours that each module names in its imports, also for types alone."""
    return {module: frozenset(imported(tree)) for module, tree in trees.items()}


def imported(tree: ast.Module) -> Iterator[str]:
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in names if name in MODULES]
            yield from modules
            if len(modules) < len(names) and node.module in MODULES:
                yield node.module


FOUNDATIONS = ("config", "vllm_facts", "base", "text")
"""Systems that every other system may import."""
SERVING = ("engine", "server", "api", "protocol", "versions")
SYSTEMS = {
    "config": (),
    "vllm_facts": ("config",),
    "base": ("config",),
    "text": ("base", "config", "vllm_facts"),
    "engine": FOUNDATIONS,
    "server": (*SERVING, *FOUNDATIONS),
    "api": (*SERVING, *FOUNDATIONS),
    "protocol": (*SERVING, *FOUNDATIONS),
    "versions": (*SERVING, *FOUNDATIONS),
    "core": (*SERVING, *FOUNDATIONS),
    "shared": (*SERVING, *FOUNDATIONS),
    "extensions": ("shared", "core", *SERVING, *FOUNDATIONS),
    "app": ("shared", "core", "extensions", *SERVING, *FOUNDATIONS),
    "workbench": ("shared", "core", "extensions", *SERVING, *FOUNDATIONS),
}
"""Layers of docs/architecture.md: what each system may import.

`vllm_facts` and `workbench` are packages of their own, at the top level. `shared` is what several
extensions and the workbench use, and the core does not. `core` stands for the modules that
lie directly in `app/core`, and for its assembly; `app` for the modules that re-export names under
older paths.
"""
ENGINE_INTERFACE = "workbench.engine"
"""The one package of the workbench that imports the engine of a server."""
ENGINE_MODULES = (
    "app.core.engine",
    "app.core.profiles",
    "app.extensions.costs",
    "app.extensions.handoff",
    "app.extensions.kv_offload",
    "app.shared.step_policies",
)
"""Modules behind the interface, with those inside of them."""
TOOLS_OF_WORKBENCH = (
    "app.core.application",
    "app.core.base.error_body",
    "app.core.base.metrics",
    "app.core.engine.simulated",
    "app.core.server",
    "app.core.settings",
    "app.core.text",
    "app.core.versions",
    "app.extensions.console",
    "app.extensions.plugins",
    "app.extensions.recording",
    "app.shared",
)
"""What else the workbench imports of the server, as docs/architecture.md lists. Only remove."""
RE_EXPORT_LINES = 20
"""Most lines of a module outside of the core and the extensions."""


def system_of(module: str) -> str:
    names = module.split(".")
    if names[0] != "app" or len(names) == 1:
        return names[0]
    if names[1] == "core":
        return names[2] if len(names) > 2 and names[2] in (*SERVING, *FOUNDATIONS) else "core"
    return names[1] if names[1] in SYSTEMS else "app"


def test_module_imports_only_modules_of_lower_layers(imports: Imports) -> None:
    beyond = [
        f"{module} imports {other}"
        for module, others in imports.items()
        if not module.startswith("vllm_understudy")
        for other in others
        if system_of(other) not in (system_of(module), *SYSTEMS[system_of(module)])
    ]
    assert beyond == []


def lies_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_workbench_imports_the_engine_through_its_interface_alone(imports: Imports) -> None:
    beyond = []
    used = set()
    for module, others in imports.items():
        if not lies_in(module, ("workbench",)):
            continue
        allowed: tuple[str, ...] = TOOLS_OF_WORKBENCH
        if lies_in(module, (ENGINE_INTERFACE,)):
            allowed = ENGINE_MODULES
        servers = [other for other in others if lies_in(other, ("app",))]
        beyond += [f"{module} imports {other}" for other in servers if not lies_in(other, allowed)]
        used |= {part for part in allowed for other in servers if lies_in(other, (part,))}
    assert beyond == []
    listed = (*TOOLS_OF_WORKBENCH, *ENGINE_MODULES)
    # A removed extension (scripts/removal_test.py) is not there to be used.
    assert used == {part for part in listed if any(lies_in(module, (part,)) for module in MODULES)}


def test_no_module_outside_core_and_extensions_exceeds_20_lines() -> None:
    long_modules = [
        module
        for module, path in MODULES.items()
        if system_of(module) == "app"
        and len(path.read_text("utf-8").splitlines()) > RE_EXPORT_LINES
    ]
    assert long_modules == []


MAX_IMPORTED_NAMES = 30
"""Most names of ours that a module of the core imports, those for types alone apart."""


def imported_names(tree: ast.Module) -> int:
    """Returns how many names of ours a file imports when it runs."""
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return sum(
        len(node.names)
        for node in nodes
        if node.module is not None and node.module.split(".")[0] in ("app", "config", "vllm_facts")
    )


def test_no_core_module_imports_more_names_than_the_limit(trees: Trees) -> None:
    counts = {
        module: imported_names(tree)
        for module, tree in trees.items()
        if module.startswith("app.core.")
    }
    assert {module: count for module, count in counts.items() if count > MAX_IMPORTED_NAMES} == {}


def test_no_circular_imports_exist(imports: Imports) -> None:
    """Whatever does, at whatever place, is one thing in two files."""
    graph = {module: others - {module} for module, others in imports.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES) > 200


def token_count(path: Path) -> int:
    with path.open(encoding="utf-8") as file:
        return sum(token.type not in LAYOUT for token in tokenize.generate_tokens(file.readline))


def word_count(path: Path) -> int:
    """Words and other characters of a file: at least its tokens, and counted fifty times as fast."""
    return len(re.findall(r"\w+|[^\w\s]", path.read_text("utf-8")))


def test_no_file_exceeds_the_size_limit() -> None:
    long_modules = {
        module: path for module, path in MODULES.items() if word_count(path) > MAX_TOKENS
    }
    sizes = {module: token_count(path) for module, path in long_modules.items()}
    assert {module: size for module, size in sizes.items() if size > MAX_TOKENS} == {}


MAX_CLASS_LINES = 400


def class_lines(node: ast.ClassDef) -> int:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or first) - first + 1


def test_no_class_of_the_server_exceeds_the_size_limit(trees: Trees) -> None:
    sizes = {
        f"{module}:{node.name}": class_lines(node)
        for module, tree in trees.items()
        if module.startswith("app.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    long_classes = {name: lines for name, lines in sizes.items() if lines > MAX_CLASS_LINES}
    assert not long_classes


CONTRACT = "app.core.extensions:Extension."
"""Functions of the contract of extensions get the settings: an extension may have any section."""
WITH_ALL_SETTINGS = {
    "app.core.application:create_app": "builds the server",
    "app.core.application:engine_options": "passes them to extensions",
    "app.core.application:new_engine_process": "passes them to extensions",
    "app.core.application:prepare": "passes them to extensions",
    "app.core.application:roles": "passes them to extensions",
    "app.core.application:tokenizer_of": "passes them to extensions",
    "app.core.assembly.routes:reason_for_absence": "passes them to extensions",
    "app.core.built_in:enabled_extensions": "passes them to extensions",
    "app.core.profiles:chosen_profile": "passes them to extensions",
    "app.core.server.gunicorn.arbiter:RankArbiter.__init__": "keeps them, and reloads them",
    "app.core.server.gunicorn.arbiter:take_over": "passes them to the workers",
    "app.core.server.gunicorn.ranks:export_settings": "passes them to the workers",
    "app.core.server.gunicorn.startup_log:log_model": "logs all at level debug",
    "app.core.settings:_profile_limits": "passes them to extensions",
}
"""Functions of the core that get the settings of the whole server, and why.

Only remove entries, except for those that pass the settings to extensions.
"""
SETTINGS = ("Settings", "AllSettings")


def takes_settings(function: ast.FunctionDef) -> bool:
    """Returns whether a parameter has the type of all settings, perhaps with None."""
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.annotation is not None:
            annotation = ast.unparse(argument.annotation).strip("'")
            if annotation.removesuffix(" | None") in SETTINGS:
                return True
    return False


def functions_with_settings(node: ast.AST, name: str) -> Iterator[str]:
    """Yields the functions in `node` that get all settings; `name` begins their names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and takes_settings(child):
            yield f"{name}{child.name}"
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from functions_with_settings(child, f"{name}{child.name}.")


def test_core_functions_receive_only_the_settings_sections_that_they_need(trees: Trees) -> None:
    functions = {
        function
        for module, tree in trees.items()
        if module.startswith("app.core.")
        for function in functions_with_settings(tree, f"{module}:")
        if not function.startswith(CONTRACT)
    }
    assert functions == set(WITH_ALL_SETTINGS)


OFF_THE_LOOP = {
    "app.extensions.datasets.command": "a command",
    "app.extensions.datasets.dataset": "reads files in native threads, with a limit for locks",
    "app.extensions.datasets.download": "downloads before the server starts",
    "app.extensions.datasets.table": "opens them for these threads",
    "workbench.runs.workers": "belongs to commands",
    "app.extensions.recording.library": "locks in native threads, with a time limit",
    "app.extensions.recording.shared_file": "locks in native threads, with a time limit",
    "vllm_understudy.mcp_script": "a process without an event loop",
}
"""Modules that can wait for another process's lock, and why the event loop does not wait there.

Only remove entries: a stopped process holds its locks, and the loop would stop with it.
"""
LOCKING_LIBRARIES = ("fcntl", "filelock", "multiprocessing", "portalocker", "sqlite3")
LOCKING_CALLS = ("flock", "lockf")
WAITING_COMMANDS = frozenset(("F_SETLKW", "F_OFD_SETLKW"))
CALLS_THAT_NEVER_WAIT = ("LOCK_NB", "LOCK_UN")
BLOCKING_CALLS = {"vllm_understudy.mcp_script:flock"}
"""Calls that wait without a limit. Only remove entries."""


def imported_libraries(tree: ast.Module) -> Iterator[str]:
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def blocking_locks(tree: ast.Module) -> Iterator[str]:
    """Yields the calls that wait for the lock of a file until its holder releases it."""
    nodes = list(ast.walk(tree))
    has_waiting_command = not WAITING_COMMANDS.isdisjoint(map(last_name, nodes))
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = last_name(node.func)
        if name not in LOCKING_CALLS and not has_waiting_command:
            continue
        names = set(map(last_name, ast.walk(node)))
        if name in LOCKING_CALLS and names.isdisjoint(CALLS_THAT_NEVER_WAIT):
            yield name
        if not names.isdisjoint(WAITING_COMMANDS):
            yield name


def test_only_listed_modules_use_libraries_with_locks_between_processes(trees: Trees) -> None:
    modules = {
        module
        for module, tree in trees.items()
        if not set(imported_libraries(tree)).isdisjoint(LOCKING_LIBRARIES)
    }
    assert modules == set(filter(is_in_tree, OFF_THE_LOOP))


def test_no_call_waits_for_the_lock_of_a_file_without_a_limit(trees: Trees) -> None:
    calls = {f"{module}:{name}" for module, tree in trees.items() for name in blocking_locks(tree)}
    assert calls == BLOCKING_CALLS


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("fcntl.lockf(file, fcntl.LOCK_EX)", ["lockf"]),
        ("flock(file, LOCK_SH)", ["flock"]),
        ("fcntl.flock(file, operation | fcntl.LOCK_NB)", []),
        ("fcntl.flock(file, fcntl.LOCK_UN)", []),
        ("fcntl.fcntl(file, fcntl.F_SETLKW, lock)", ["fcntl"]),
    ],
)
def test_blocking_locks_are_recognized(source: str, names: list[str]) -> None:
    assert list(blocking_locks(ast.parse(source))) == names
